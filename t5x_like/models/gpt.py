"""GPT (Radford et al. 2018), GPT-2 (Radford et al. 2019) and GPT-3 (Brown et al. 2020): decoders with learnt positions.

What makes it GPT: LayerNorm, a bias on every projection, tanh GELU, a table of positions added to the tokens, logits by
the tokens' table. GPT normalises after each block, as Vaswani et al. did; GPT-2 before it and once more at the end, and
starts its residual projections smaller the more layers there are. GPT-3 is GPT-2 with 2,048 positions whose layers take
turns: one attends to everything before it, the next to a band.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Literal

import jax
from jaxtyping import Array, Float, Int

from t5x_like.kernels.dropout import Dropout
from t5x_like.layers import embeddings, initializers, stacks
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.projections import Projection
from t5x_like.models import checks, decoder
from t5x_like.models.base import BaseConfig

# Standard deviation of initial kernels and tables (Radford et al. 2018, section 4.1), and of GPT-2's table of positions
# in its released code.
INIT_STDDEV = 0.02
GPT2_POSITIONS_INIT_STDDEV = 0.01


@dataclasses.dataclass(frozen=True)
class GPTConfig(BaseConfig):
    """Sizes and hyperparameters; the defaults are those of GPT-2's smallest network."""

    vocab_size: int = 50257
    # Size of a hidden state (n_embd).
    embed_dim: int = 768
    # Size within a feed-forward block; four times embed_dim in all published networks.
    mlp_dim: int = 3072
    num_heads: int = 12
    # Size of a head's queries, keys and values; heads times this is embed_dim but for two sizes of GPT-3.
    head_dim: int = 64
    num_layers: int = 12
    # Rows of the table of positions. GPT: 512, GPT-2: 1024, GPT-3: 2048.
    max_length: int = 1024
    # Of the feed-forward blocks.
    activations: tuple[str, ...] = ("gelu",)
    # Where the norm of a block stands. 'post': after its sum, and none at the end (GPT). 'pre': before it, and one at
    # the end (GPT-2, GPT-3); positions and residual projections then start smaller, as GPT-2's.
    norm_position: Literal["pre", "post"] = "pre"
    # How many positions back, its own included, a layer attends; None: all. Several are taken in turns by the layers.
    attention_windows: tuple[int | None, ...] = (None,)
    # Whether logits are products with the embeddings, as in all published networks.
    tied_embeddings: bool = True
    # Of the embeddings' sum and of each block's output.
    dropout_rate: float = 0.1
    # Of the attention weights.
    attention_dropout_rate: float = 0.1
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
        return self.num_heads

    def make(self, key: jax.Array) -> "GPT":
        """A freshly initialised network."""
        return GPT(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Floating-point operations of one update, forward and backward; see `decoder.forward_flops`.

        Args:
          shapes: of the global batch's `decoder_input_tokens`, `(batch, length)`.
        """
        # The backward pass needs two products of the same size for each product of the forward pass.
        return 3.0 * decoder.forward_flops(self, *shapes["decoder_input_tokens"])


def make_layer(config: GPTConfig, key: jax.Array) -> TransformerLayer:
    """Self-attention and a feed-forward block."""
    attention_key, mlp_key = jax.random.split(key)
    # GPT-2's residual projections start smaller by the root of their number (Radford et al. 2019, section 2.3).
    smaller = (2 * config.num_layers) ** -0.5 if config.norm_position == "pre" else 1.0
    shared = dict(
        init=initializers.normal(INIT_STDDEV),
        out_init=initializers.normal(INIT_STDDEV * smaller),
        bias=True,
        dtype=config.compute_dtype,
    )
    blocks = {
        "attention": MultiHeadAttention(
            config.embed_dim,
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
    return LayerNorm(config.embed_dim, epsilon=config.norm_epsilon)


class GPT(decoder.Decoder):
    """The network; its interface is "The model seam" in docs/architecture.md."""

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
            self.logits = Projection(
                (config.embed_dim,), (config.vocab_size,), axes=("embed", "vocab"), init=init, key=logits_key
            )
        self.embedding_dropout = Dropout(config.dropout_rate)

    def embed_tokens(self, tokens: Int[Array, "batch length"], positions: Int[Array, "batch length"]) -> Hidden:
        return self.token_embedder(tokens) + self.position_embedder(positions)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Logits in float32."""
        if self.config.tied_embeddings:
            return self.token_embedder.attend(hidden)
        return embeddings.logits(hidden, self.logits.kernel[...])
