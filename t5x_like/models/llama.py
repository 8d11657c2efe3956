"""Llama 1 to 3.2 (Touvron et al. 2023a, 2023b; Grattafiori et al. 2024) and Mistral (Jiang et al. 2023): decoders.

What makes it Llama: RMSNorm before each block and at the end, no bias, queries and keys rotated by their positions,
SwiGLU blocks, logits of their own. Llama 2 70B, Llama 3 and Mistral share a key and a value head among several query
heads; Mistral attends to a sliding window.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout
from t5x_like.layers import embeddings, initializers, stacks
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden, TransformerLayer
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import RMSNorm
from t5x_like.layers.projections import Projection
from t5x_like.layers.rope_scaling import SCALINGS, Scaling
from t5x_like.layers.rotary import Rotary
from t5x_like.models import checks, decoder
from t5x_like.models.base import BaseConfig

# Standard deviation of initial kernels and embeddings; the papers give none, this is transformers'.
INIT_STDDEV = 0.02


@dataclasses.dataclass(frozen=True)
class LlamaConfig(BaseConfig):
    """Sizes and hyperparameters; the defaults are those of Llama 2 7B."""

    vocab_size: int = 32000
    # Size of a hidden state.
    embed_dim: int = 4096
    # Size within a feed-forward block.
    mlp_dim: int = 11008
    num_heads: int = 32
    # Heads of keys and values, each of which serves num_heads / num_kv_heads heads of queries. None: num_heads.
    num_kv_heads: int | None = None
    # Size of a head's queries, keys and values; even, for the rotations. Heads times this need not be embed_dim.
    head_dim: int = 128
    num_layers: int = 32
    # The longest row. Positions have no table, so that this changes no parameter.
    max_length: int = 4096
    # Of the feed-forward blocks; their product where there are two.
    activations: tuple[str, ...] = ("silu", "linear")
    # Base of the rotations' wave lengths. Llama 3: 500,000.
    rope_theta: float = 10000.0
    # Scaling of rotary positions to rows longer than those of pretraining: `Linear`, `Dynamic`, `Llama3` or `Yarn` of
    # layers/rope_scaling.py, or None. Llama 3.1 and 3.2: Llama3.
    rope_scaling: Scaling | None = None
    # How many positions back, its own included, a layer attends; None: all. Several are taken in turns by the layers.
    # Mistral: (4096,).
    attention_windows: tuple[int | None, ...] = (None,)
    # Whether the projections of attention, and those of the feed-forward blocks, have biases; no published size has.
    attention_bias: bool = False
    mlp_bias: bool = False
    # Whether logits are products with the embeddings.
    tied_embeddings: bool = False
    # Of each block's output. All published sizes were pretrained without dropout.
    dropout_rate: float = 0.0
    # Of the attention weights.
    attention_dropout_rate: float = 0.0
    # Llama 7B, 13B and 33B: 1e-6.
    norm_epsilon: float = 1e-5

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
        if self.rope_scaling is not None and not isinstance(self.rope_scaling, SCALINGS):
            raise UserError(
                f"LlamaConfig.rope_scaling={self.rope_scaling!r} must be None or one of "
                f"{', '.join(kind.__name__ for kind in SCALINGS)} of t5x_like.layers.rope_scaling"
            )
        if self.head_dim % 2:
            raise UserError(f"LlamaConfig.head_dim={self.head_dim} must be even: rotations turn pairs of entries")

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads

    def make(self, key: jax.Array) -> "Llama":
        """A freshly initialised network."""
        return Llama(self, key=key)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Floating-point operations of one update, forward and backward; see `decoder.forward_flops`.

        Args:
          shapes: of the global batch's `decoder_input_tokens`, `(batch, length)`.
        """
        # The backward pass needs two products of the same size for each product of the forward pass.
        return 3.0 * decoder.forward_flops(self, *shapes["decoder_input_tokens"])


def make_layer(config: LlamaConfig, key: jax.Array) -> TransformerLayer:
    """Self-attention and a gated feed-forward block."""
    attention_key, mlp_key = jax.random.split(key)
    init = initializers.normal(INIT_STDDEV)
    blocks = {
        "attention": MultiHeadAttention(
            config.embed_dim,
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
    return RMSNorm(config.embed_dim, epsilon=config.norm_epsilon)


class Llama(decoder.Decoder):
    """The network; its interface is "The model seam" in docs/architecture.md."""

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
            self.logits = Projection(
                (config.embed_dim,), (config.vocab_size,), axes=("embed", "vocab"), init=init, key=logits_key
            )

    def embed_tokens(self, tokens: Int[Array, "batch length"], positions: Int[Array, "batch length"]) -> Hidden:
        return self.token_embedder(tokens)

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Logits in float32."""
        if self.config.tied_embeddings:
            return self.token_embedder.attend(hidden)
        return embeddings.logits(hidden, self.logits.kernel[...])
