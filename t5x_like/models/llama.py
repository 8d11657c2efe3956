"""Llama 1 to 3.2 (Touvron et al. 2023a, 2023b; Grattafiori et al. 2024) and Mistral (Jiang et al. 2023): decoders.

Common to all: RMSNorm before each block and after the last layer, no biases, rotary position embeddings, SwiGLU
feed-forward blocks (Touvron et al. 2023a, section 2.2), and a separate kernel for the logits except in Llama 3.2 1B and
3B. In Llama 2 34B and 70B, Llama 3 and Mistral several query heads share a key and value head (grouped-query
attention). Mistral attends to a sliding window (Jiang et al. 2023, section 2).
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout
from t5x_like.layers import embeddings, initializers, stacks
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import RMSNorm
from t5x_like.layers.rope_scaling import SCALINGS, Scaling
from t5x_like.layers.rotary import Rotary
from t5x_like.models import checks, decoder
from t5x_like.models.base import BaseConfig, StackInfo

# Standard deviation of initial kernels and embeddings, as in transformers. The papers do not state it.
INIT_STDDEV = 0.02


@dataclasses.dataclass(frozen=True)
class LlamaConfig(BaseConfig):
    """Sizes and hyperparameters of Llama and Mistral; by default Llama 2 7B."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 32000
    # Size of a hidden state.
    embed_dim: int = 4096
    # Size within a feed-forward block.
    mlp_dim: int = 11008
    # Number of query heads.
    num_heads: int = 32
    # Key and value heads, each shared by num_heads / num_kv_heads query heads. None: num_heads.
    num_kv_heads: int | None = None
    # Size of the queries, keys and values of a head; even, for the rotations. num_heads · head_dim may differ from
    # embed_dim.
    head_dim: int = 128
    # Number of layers.
    num_layers: int = 32
    # Longest row, in tokens. Parameters do not depend on it.
    max_length: int = 4096
    # Activations of the feed-forward blocks; with two, their product.
    activations: tuple[str, ...] = ("silu", "linear")
    # Base of the wavelengths of the rotations. Llama 3: 500,000.
    rope_theta: float = 10000.0
    # Scaling of rotary positions for rows longer than in pretraining: `Linear`, `Dynamic`, `Llama3` or `Yarn` of
    # layers/rope_scaling.py, or None. Llama 3.1 and 3.2: Llama3.
    rope_scaling: Scaling | None = None
    # Number of positions, its own included, to which a position attends; None: all. Several windows repeat over the
    # layers.
    # Mistral: (4096,).
    attention_windows: tuple[int | None, ...] = (None,)
    # Whether the projections of attention and of the feed-forward blocks have biases. No published size has them.
    attention_bias: bool = False
    # Whether the kernels of feed-forward blocks have biases.
    mlp_bias: bool = False
    # Whether the logits use the token embeddings as their kernel.
    tied_embeddings: bool = False
    # Dropout rate of the output of each block. All published sizes were pretrained without dropout.
    dropout_rate: float = 0.0
    # Dropout rate of the attention weights.
    attention_dropout_rate: float = 0.0
    # Epsilon of the norms. Llama 7B, 13B and 33B: 1e-6.
    norm_epsilon: float = 1e-5
    # `model_type` of the exported config.json: `llama` or `mistral`, which is also the type of later Mistrals, without
    # windows. None: `mistral` with windows, `llama` without.
    model_type: str | None = None

    def __post_init__(self):
        super().__post_init__()
        if self.num_kv_heads is None:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        checks.positive_integers(self, "embed_dim", "mlp_dim", "num_heads", "num_kv_heads", "head_dim")
        checks.positive_integers(self, "num_layers", "max_length")
        checks.rates(self, "dropout_rate", "attention_dropout_rate")
        checks.positive(self, "rope_theta", "norm_epsilon")
        checks.divides(self, "num_kv_heads", "num_heads")
        checks.activations(self)
        decoder.check_attention_windows(self)
        if self.model_type not in (None, "llama", "mistral"):
            raise UserError(f"LlamaConfig.model_type={self.model_type!r}: unknown. Give 'llama', 'mistral' or None.")
        if self.rope_scaling is not None and not isinstance(self.rope_scaling, SCALINGS):
            raise UserError(
                f"LlamaConfig.rope_scaling={self.rope_scaling!r}: unknown. Give None or one of "
                f"{', '.join(kind.__name__ for kind in SCALINGS)} of t5x_like.layers.rope_scaling."
            )
        if self.head_dim % 2:
            raise UserError(f"LlamaConfig.head_dim={self.head_dim}: must be even, since rotary embeddings rotate pairs")

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.num_kv_heads

    @property
    def stacks(self) -> dict[str, StackInfo]:
        """Sizes of the stack; see `ModelConfig.stacks`."""
        return {"decoder": self.stack(self.num_layers)}

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return (*super().reads, "decoder_prefix")

    def make(self, key: jax.Array) -> "Llama":
        """Returns a Llama with newly initialized parameters; see `ModelConfig.make`."""
        return Llama(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; see `decoder.forward_flops`."""
        # The backward pass computes two matrix products of the same size per product of the forward pass.
        return 3.0 * decoder.forward_flops(self, shapes)


def make_layer(config: LlamaConfig, key: jax.Array) -> TransformerLayer:
    """Makes a layer of self-attention and a gated feed-forward block."""
    attention_key, mlp_key = jax.random.split(key)
    init = initializers.normal(INIT_STDDEV)
    blocks = {
        "attention": MultiHeadAttention(
            Sizes(config.embed_dim),
            heads=config.num_heads,
            head_dim=config.head_dim,
            kv_heads=config.num_kv_heads,
            init=init,
            bias=config.attention_bias,
            scale=config.head_dim**-0.5,
            rotary=Rotary(config.rope_theta, config.rope_scaling),
            dropout=Dropout(config.attention_dropout_rate),
            dtype=config.compute_dtype,
            key=attention_key,
        ),
        "mlp": MLP(
            config.embed_dim,
            config.mlp_dim,
            activations=config.activations,
            init=init,
            bias=config.mlp_bias,
            dtype=config.compute_dtype,
            key=mlp_key,
        ),
    }
    return TransformerLayer(
        blocks, functools.partial(make_norm, config), norm_position="pre", dropout=Dropout(config.dropout_rate)
    )


def make_norm(config: LlamaConfig) -> RMSNorm:
    """Makes the norm of a block or of the stack."""
    return RMSNorm(config.embed_dim, epsilon=config.norm_epsilon)


class Llama(decoder.Decoder):
    """Llama or Mistral. Implements `Model` and `GenerativeDecoder` of `models/base.py`.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Table `[vocab_size embed_dim]` of the tokens, and of the logits if they are tied.
      decoder: Layers of the decoder.
      logits: Kernel of the logits, unless they are tied.
    """

    def __init__(self, config: LlamaConfig, *, key: jax.Array):
        tokens_key, decoder_key, logits_key = jax.random.split(key, 3)
        self.config = config
        init = initializers.normal(INIT_STDDEV)
        self.token_embedder = embeddings.Embedder(
            config.vocab_size, config.embed_dim, init=init, dtype=config.compute_dtype, key=tokens_key
        )
        self.decoder = stacks.Stack(
            functools.partial(make_layer, config),
            config.num_layers,
            key=decoder_key,
            norm=make_norm(config),
            scan=bool(config.scan_layers),
            remat=config.remat,
        )
        if not config.tied_embeddings:
            self.logits = embeddings.Unembedding(config.embed_dim, config.vocab_size, init=init, key=logits_key)

    def embed_tokens(self, tokens: Int[Array, "batch length"], positions: Int[Array, "batch length"]) -> Hidden:
        """Returns the token embeddings; positions enter through the rotations."""
        return self.token_embedder(tokens)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32."""
        if self.config.tied_embeddings:
            return self.token_embedder.attend(hidden)
        return self.logits(hidden)
