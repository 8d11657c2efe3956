"""GPT (Radford et al. 2018), GPT-2 (Radford et al. 2019) and GPT-3 (Brown et al. 2020): decoder-only models.

Common to all: LayerNorm, biases in all projections, the tanh approximation of GELU, a table of positions added to the
token embeddings, and logits that use the token embeddings as their kernel. GPT has post-norm layers (Vaswani et al.
2017). GPT-2 has pre-norm layers and a final norm, and scales the initial residual projections by the depth (Radford et
al. 2019, section 2.3). GPT-3 is GPT-2 with 2,048 positions and layers that alternate between dense and locally banded
attention (Brown et al. 2020, section 2.1).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal

import jax
from jaxtyping import Array, Float, Int

from t5x_like.kernels.dropout import Dropout
from t5x_like.layers import embeddings, initializers, stacks
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import LayerNorm
from t5x_like.models import checks, decoder
from t5x_like.models.base import BaseConfig, StackInfo

# Standard deviation of initial kernels and embedding tables (Radford et al. 2018, section 4.1).
INIT_STDDEV = 0.02
# The same for GPT-2's table of positions, from the released code.
GPT2_POSITIONS_INIT_STDDEV = 0.01


@dataclasses.dataclass(frozen=True)
class GPTConfig(BaseConfig):
    """Sizes and hyperparameters of GPT, GPT-2 and GPT-3; by default GPT-2 small."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 50257
    # Size of a hidden state (n_embd).
    embed_dim: int = 768
    # Size within a feed-forward block; four times embed_dim in all published models.
    mlp_dim: int = 3072
    # Number of attention heads.
    num_heads: int = 12
    # Size of the queries, keys and values of a head. num_heads · head_dim is embed_dim except in two sizes of GPT-3.
    head_dim: int = 64
    # Number of layers.
    num_layers: int = 12
    # Rows of the table of positions. GPT: 512, GPT-2: 1024, GPT-3: 2048.
    max_length: int = 1024
    # Activations of the feed-forward blocks; with two, their product.
    activations: tuple[str, ...] = ("gelu",)
    # Position of the norms. 'post': after the residual sum of each block (GPT). 'pre': before each block and after the
    # last layer (GPT-2, GPT-3); initial positions and residual projections are then smaller, as in GPT-2.
    norm_position: Literal["pre", "post"] = "pre"
    # Number of positions, its own included, to which a position attends; None: all. Several windows repeat over the
    # layers.
    attention_windows: tuple[int | None, ...] = (None,)
    # Whether the logits use the token embeddings as their kernel, as in all published models.
    tied_embeddings: bool = True
    # Dropout rate of the embeddings and of the output of each block.
    dropout_rate: float = 0.1
    # Dropout rate of the attention weights.
    attention_dropout_rate: float = 0.1
    # Added to the variance or mean square before the root, in every norm.
    norm_epsilon: float = 1e-5

    def __post_init__(self):
        super().__post_init__()
        checks.positive_integers(self, "embed_dim", "mlp_dim", "num_heads", "head_dim")
        checks.positive_integers(self, "num_layers", "max_length")
        checks.rates(self, "dropout_rate", "attention_dropout_rate")
        checks.positive(self, "norm_epsilon")
        checks.one_of(self, "norm_position", ("pre", "post"))
        checks.activations(self)
        decoder.check_attention_windows(self)

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.num_heads

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack; see `ModelConfig.stacks`."""
        return {"decoder": self.stack(self.num_layers)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (*super().reads, "decoder_prefix")

    def make(self, key: jax.Array) -> "GPT":
        """Returns a GPT with newly initialized parameters; see `ModelConfig.make`."""
        return GPT(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; see `decoder.forward_flops`."""
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * decoder.forward_flops(self, shapes)


def make_layer(config: GPTConfig, key: jax.Array) -> TransformerLayer:
    """Makes a layer of self-attention and a feed-forward block."""
    attention_key, mlp_key = jax.random.split(key)
    # GPT-2 divides the initial residual projections by the square root of their number (Radford et al. 2019,
    # section 2.3).
    residual_scale = (2 * config.num_layers) ** -0.5 if config.norm_position == "pre" else 1.0
    shared = dict(
        init=initializers.normal(INIT_STDDEV),
        out_init=initializers.normal(INIT_STDDEV * residual_scale),
        bias=True,
        dtype=config.compute_dtype,
    )
    blocks = {
        "attention": MultiHeadAttention(
            Sizes(config.embed_dim),
            heads=config.num_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            dropout=Dropout(config.attention_dropout_rate),
            key=attention_key,
            **shared,
        ),
        "mlp": MLP(config.embed_dim, config.mlp_dim, activations=config.activations, key=mlp_key, **shared),
    }
    return TransformerLayer(
        blocks,
        functools.partial(make_norm, config),
        norm_position=config.norm_position,
        dropout=Dropout(config.dropout_rate),
    )


def make_norm(config: GPTConfig) -> LayerNorm:
    """Makes the norm of a block or of the stack."""
    return LayerNorm(config.embed_dim, epsilon=config.norm_epsilon)


class GPT(decoder.Decoder):
    """GPT, GPT-2 or GPT-3. Implements `Model` and `GenerativeDecoder` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Table `[vocab_size embed_dim]` of the tokens, and of the logits if they are tied.
      position_embedder: Table `[max_length embed_dim]`.
      decoder: Layers of the decoder.
      logits: Kernel of the logits, unless they are tied.
    """

    def __init__(self, config: GPTConfig, *, key: jax.Array):
        tokens_key, positions_key, decoder_key, logits_key = jax.random.split(key, 4)
        self.config = config
        init = initializers.normal(INIT_STDDEV)
        self.token_embedder = embeddings.Embedder(
            config.vocab_size, config.embed_dim, init=init, dtype=config.compute_dtype, key=tokens_key
        )
        self.position_embedder = embeddings.Embedder(
            config.max_length,
            config.embed_dim,
            axis="positions",
            init=initializers.normal(GPT2_POSITIONS_INIT_STDDEV) if config.norm_position == "pre" else init,
            dtype=config.compute_dtype,
            key=positions_key,
        )
        self.decoder = stacks.Stack(
            functools.partial(make_layer, config),
            config.num_layers,
            key=decoder_key,
            norm=make_norm(config) if config.norm_position == "pre" else None,
            scan=bool(config.scan_layers),
            remat=config.remat,
        )
        if not config.tied_embeddings:
            self.logits = embeddings.Unembedding(config.embed_dim, config.vocab_size, init=init, key=logits_key)
        self.embedding_dropout = Dropout(config.dropout_rate)

    def embed_tokens(self, tokens: Int[Array, "batch length"], positions: Int[Array, "batch length"]) -> Hidden:
        """Returns the sum of token and position embeddings."""
        return self.token_embedder(tokens) + self.position_embedder(positions)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32."""
        if self.config.tied_embeddings:
            return self.token_embedder.attend(hidden)
        return self.logits(hidden)
