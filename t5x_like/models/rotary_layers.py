"""The layer of Llama and the families after it: attention with rotary positions, and a gated feed-forward block.

A family is a configuration that overrides what it changes: the norms and their positions (`make_norm`,
`norm_position`), the options of a block (`attention_options`, `mlp_options`), or the rotation of a layer (`rotary`).
Layers differ in their window and their rotation alone (`layer_kinds`), which are inputs of a layer, so that all layers
of a stack have parameters of the same shapes. `rotary_decoder` and `rotary_encoder` have the models.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout
from t5x_like.layers import embeddings, initializers, stacks
from t5x_like.layers.attention import MultiHeadAttention, Sizes
from t5x_like.layers.blocks import Hidden, NormPosition, TransformerLayer
from t5x_like.layers.layer_kinds import LayerKind
from t5x_like.layers.mlp import MLP
from t5x_like.layers.norms import LayerNorm, RMSNorm
from t5x_like.layers.rope_scaling import SCALINGS, Scaling
from t5x_like.layers.rotary import Rotary
from t5x_like.models import checks, decoder
from t5x_like.models.base import BaseConfig, BaseModel

# Standard deviation of initial kernels and embeddings, as in transformers. The papers do not state it.
INIT_STDDEV = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryConfig(BaseConfig):
    """Sizes and hyperparameters that the families have in common; by default those of Llama 2 7B."""

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
    # Window w: a decoder attends to the last w positions, its own included, and an encoder to w - 1 on each side;
    # None: all. Several windows repeat over the layers, and the last repetition may be incomplete. Mistral: (4096,).
    attention_windows: tuple[int | None, ...] = (None,)
    # Whether the logits use the token embeddings as their kernel.
    tied_embeddings: bool = False
    # Dropout rate of the output of each block. All published sizes were pretrained without dropout.
    dropout_rate: float = 0.0
    # Dropout rate of the attention weights.
    attention_dropout_rate: float = 0.0
    # Epsilon of the norms. Llama 7B, 13B and 33B: 1e-6.
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
        name = type(self).__name__
        if self.rope_scaling is not None and not isinstance(self.rope_scaling, SCALINGS):
            raise UserError(
                f"{name}.rope_scaling={self.rope_scaling!r}: unknown. Give None or one of "
                f"{', '.join(kind.__name__ for kind in SCALINGS)} of t5x_like.layers.rope_scaling."
            )
        if self.head_dim % 2:
            raise UserError(f"{name}.head_dim={self.head_dim}: must be even, since rotary embeddings rotate pairs")

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.num_kv_heads

    @property
    def initializer(self) -> initializers.Initializer:
        """Initializer of kernels and tables."""
        return initializers.normal(INIT_STDDEV)

    @property
    def norm_position(self) -> NormPosition | Mapping[str, NormPosition]:
        """Position of the norms of the blocks; see `TransformerLayer`."""
        return "pre"

    @property
    def block_dropout(self) -> Dropout | Mapping[str, Dropout]:
        """Dropout of the output of each block; see `TransformerLayer`."""
        return Dropout(self.dropout_rate)

    def scale_embeddings(self, embedded: Hidden) -> Hidden:
        """Returns token embeddings as the first layer reads them."""
        return embedded

    def limit_logits(self, logits: Float[Array, "batch length vocab"]) -> Float[Array, "batch length vocab"]:
        """Returns logits within the limit of the family, if it has one."""
        return logits

    def make_norm(self) -> RMSNorm | LayerNorm:
        """Makes the norm of a block or of the stack."""
        return RMSNorm(self.embed_dim, epsilon=self.norm_epsilon)

    def head_norms(self, kind: type[RMSNorm]) -> tuple[RMSNorm, RMSNorm]:
        """Returns norms of the queries and of the keys of each head; see `MultiHeadAttention`."""
        queries, keys = (kind(self.head_dim, epsilon=self.norm_epsilon, axis="kv") for _ in range(2))
        return queries, keys

    def rotary(self, window: int | None) -> Rotary | None:
        """Returns the rotation of the layers with a window."""
        return Rotary(self.rope_theta, self.rope_scaling)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of the layers, repeated over the layers."""
        return tuple(LayerKind(window, self.rotary(window)) for window in self.attention_windows)

    def attention_options(self) -> dict[str, Any]:
        """Returns the arguments of `MultiHeadAttention`, without its key."""
        return {
            "sizes": Sizes(self.embed_dim),
            "heads": self.num_heads,
            "head_dim": self.head_dim,
            "kv_heads": self.num_kv_heads,
            "init": self.initializer,
            "scale": self.head_dim**-0.5,
            "dropout": Dropout(self.attention_dropout_rate),
            "dtype": self.compute_dtype,
        }

    def mlp_options(self) -> dict[str, Any]:
        """Returns the arguments of `MLP`, without its key."""
        return {
            "size": self.embed_dim,
            "hidden_size": self.mlp_dim,
            "activations": self.activations,
            "init": self.initializer,
            "dtype": self.compute_dtype,
        }

    def make_layer(
        self, key: jax.Array, attentions: Mapping[str, Callable[[jax.Array], MultiHeadAttention]] | None = None
    ) -> TransformerLayer:
        """Makes a layer of attention blocks and a feed-forward block.

        Args:
          key: Random key of the initialization.
          attentions: Name of an attention block -> makes it from a random key; None for self-attention alone.
        """
        attentions = {"attention": self.make_attention} if attentions is None else attentions
        *attention_keys, mlp_key = jax.random.split(key, len(attentions) + 1)
        blocks = {name: make(own) for (name, make), own in zip(attentions.items(), attention_keys, strict=True)}
        blocks["mlp"] = MLP(**self.mlp_options(), key=mlp_key)
        return TransformerLayer(blocks, self.make_norm, norm_position=self.norm_position, dropout=self.block_dropout)

    def make_attention(self, key: jax.Array) -> MultiHeadAttention:
        """Makes the self-attention of a layer."""
        return MultiHeadAttention(**self.attention_options(), key=key)

    def make_stack(
        self, key: jax.Array, make_layer: Callable[[jax.Array], TransformerLayer] | None = None
    ) -> stacks.Stack:
        """Makes the layers, by default those of `make_layer`, and the norm after the last one."""
        return stacks.Stack(
            make_layer or self.make_layer,
            self.num_layers,
            key=key,
            norm=self.make_norm(),
            scan=bool(self.scan_layers),
            remat=self.remat,
        )


class RotaryModel(BaseModel):
    """The embeddings and the logits of the models, whose stack is the attribute `config.stacks` names.

    Args:
      config: Configuration of the model.
      key: Random key of the initialization.

    Attributes:
      token_embedder: Table `[vocab_size embed_dim]` of the tokens, and of the logits if they are tied.
      logits: Kernel of the logits, unless they are tied.
    """

    def __init__(self, config: RotaryConfig, *, key: jax.Array):
        tokens_key, stack_key, logits_key = jax.random.split(key, 3)
        self.config = config
        self.token_embedder = embeddings.Embedder(
            config.vocab_size, config.embed_dim, init=config.initializer, dtype=config.compute_dtype, key=tokens_key
        )
        (stack,) = config.stacks
        setattr(self, stack, config.make_stack(stack_key))
        if not config.tied_embeddings:
            self.logits = self.make_unembedding(logits_key)

    def make_unembedding(self, key: jax.Array) -> embeddings.Unembedding:
        """Makes the kernel of logits that are not tied to the embeddings."""
        config = self.config
        return embeddings.Unembedding(config.embed_dim, config.vocab_size, init=config.initializer, key=key)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of the layers, repeated over the layers."""
        return self.config.layer_kinds

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32."""
        product = self.token_embedder.attend if self.config.tied_embeddings else self.logits
        return self.config.limit_logits(product(hidden))
