"""ModernBERT (Warner et al. 2024, arXiv:2412.13663), the encoders of its shape (Ettin, mmBERT), and Ettin's decoders.

The embeddings are normalized. Each layer has LayerNorms without biases before its blocks, except that the attention of
the first layer reads the embeddings as they are; GeGLU, rotary positions and no biases. Every third layer sees all
tokens; the others see 64 tokens on either side, and rotate by a smaller base. A dense layer, GELU and a norm come
before the logits, which are tied to the embeddings and have a bias: in the encoders they belong to the masked-LM head,
in the decoders (Weller et al. 2025, arXiv:2507.11412) to the model.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import NO_DROPOUT, Dropout
from t5x_like.layers import initializers
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.layer_kinds import LayerKind
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.projections import Projection
from t5x_like.layers.rotary import Rotary
from t5x_like.models import checks
from t5x_like.models.base import Batch, PredictionHead
from t5x_like.models.rotary_decoder import RotaryDecoder, RotaryDecoderConfig
from t5x_like.models.rotary_encoder import RotaryEncoder, RotaryEncoderConfig
from t5x_like.models.rotary_layers import RotaryConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModernBertFields(RotaryConfig):
    """Sizes and hyperparameters of ModernBERT and Ettin; by default of the base size."""

    # Rows of the embedding table; token ids are smaller. mmBERT: 256,000.
    vocab_size: int = 50368
    # Size of a hidden state.
    embed_dim: int = 768
    # Size within a feed-forward block.
    mlp_dim: int = 1152
    # Number of attention heads.
    num_heads: int = 12
    # Size of the queries, keys and values of a head; even, for the rotations.
    head_dim: int = 64
    # Number of layers, at least 2.
    num_layers: int = 22
    # Longest row, in tokens.
    max_length: int = 8192
    # Activations of the feed-forward blocks and of the masked-LM head.
    activations: tuple[str, ...] = ("gelu_exact", "linear")
    # Base of the wavelengths of the rotations in layers without a window. The first phase of pretraining: 10,000.
    rope_theta: float = 160000.0
    # Base of the wavelengths of the rotations in layers with a window. mmBERT and later Ettin models: 160,000.
    local_rope_theta: float = 10000.0
    # Whether the logits use the token embeddings as their kernel.
    tied_embeddings: bool = True
    # Dropout rate of the output of the attention. The recipe of pretraining: 0.1.
    dropout_rate: float = 0.0
    # Standard deviation of new kernels and tables, truncated at twice its value. Kernels that write to the residual
    # stream have it divided by the root of their number.
    initializer_range: float = 0.02

    def __post_init__(self):
        super().__post_init__()
        checks.positive(self, "local_rope_theta", "initializer_range")
        checks.at_least(self, "num_layers", 2)
        if self.num_kv_heads != self.num_heads:
            raise UserError(
                f"{type(self).__name__}.num_kv_heads={self.num_kv_heads}: must be num_heads={self.num_heads} or None"
            )

    def keep_layers(self, indices: Sequence[int]) -> dict[str, Any]:
        """Refuses to remove layers; see `pruning.structures.LayerIndexed`.

        Raises:
          UserError: Always.
        """
        raise UserError(
            f"LAYERS={tuple(indices)}: not supported for {type(self).__name__}, whose first layer has no norm before "
            "its attention. Remove heads or units instead."
        )

    @property
    def initializer(self) -> initializers.Initializer:
        """Initializer of kernels and tables."""
        return initializers.truncated_normal(self.initializer_range)

    def make_norm(self) -> LayerNorm:
        """Makes the norm of a block or of the stack."""
        return LayerNorm(self.embed_dim, epsilon=self.norm_epsilon, bias=False)

    def rotary(self, window: int | None) -> Rotary:
        """Returns the rotation of the layers with a window; see `RotaryConfig.rotary`."""
        return super().rotary(window) if window is None else Rotary(self.local_rope_theta)

    @property
    def norm_position(self) -> dict[str, str]:
        """Position of the norms of the blocks: the attention gets its own from the model."""
        return {"attention": "none", "mlp": "pre"}

    def attention_options(self) -> dict[str, Any]:
        """Returns the arguments of `MultiHeadAttention`; see `RotaryConfig.attention_options`."""
        return super().attention_options() | {"out_init": self._out_init}

    def mlp_options(self) -> dict[str, Any]:
        """Returns the arguments of `MLP`; see `RotaryConfig.mlp_options`."""
        return super().mlp_options() | {"out_init": self._out_init}

    @property
    def _out_init(self) -> initializers.Initializer:
        return initializers.truncated_normal(self.initializer_range * (2 * self.num_layers) ** -0.5)

    def make_attention(self, key: jax.Array) -> "NormalizedAttention":
        """Makes the self-attention of a layer."""
        return NormalizedAttention(**self.attention_options(), key=key)

    @property
    def block_dropout(self) -> dict[str, Dropout]:
        """Dropout of the output of each block: only the attention has dropout."""
        return {"attention": Dropout(self.dropout_rate), "mlp": NO_DROPOUT}


class NormalizedAttention(MultiHeadAttention):
    """Self-attention of an input that it normalizes; see `MultiHeadAttention`."""

    def __call__(self, x: Hidden, *, norm: Any = None, **options) -> tuple[Hidden, dict[str, Array]]:
        """Computes the attention of `norm(x)`, or of `x` if `norm` is None; see `MultiHeadAttention.__call__`."""
        return super().__call__(x if norm is None else norm(x), **options)

    def step(self, x: Hidden, *args, norm: Any = None, **options):
        """Computes the attention of new positions; see `MultiHeadAttention.step`."""
        return super().step(x if norm is None else norm(x), *args, **options)


class ModernBertLayers(nnx.Module):
    """The norms that the encoder and the decoder have beside their stacks.

    Attributes:
      embedding_norm: Norm of the embeddings.
      attention_norms: Norms before the attention of all layers but the first, stacked, also in an unrolled stack.
    """

    def make_norms(self, config: ModernBertFields) -> None:
        """Makes the norms."""
        self.embedding_norm = config.make_norm()
        self.attention_norms = jax.vmap(lambda _: config.make_norm())(jnp.arange(config.num_layers - 1))

    def layer_inputs(self, kind: LayerKind, attention: dict[str, Any]) -> Any:
        """Returns a function from the index of a layer to its inputs, with the norm of its attention."""

        def inputs(index):
            return {"attention": attention | {"norm": self._attention_norm(index)}}

        return inputs

    def _attention_norm(self, index: int | Int[Array, ""]) -> Any:
        """Returns the norm of a layer, or for the first layer None; within a scan, a function that computes either."""
        if isinstance(index, int):
            return jax.tree.map(lambda leaf: leaf[index - 1], self.attention_norms) if index else None
        row = jnp.maximum(index - 1, 0)
        norm = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, row, keepdims=False), self.attention_norms)
        return lambda x: jnp.where(index == 0, x, norm(x))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModernBertConfig(ModernBertFields, RotaryEncoderConfig):
    """Sizes and hyperparameters of ModernBERT; by default ModernBERT base."""

    # Window w: a position attends to w - 1 positions on each side; None: all. Several windows repeat over the layers,
    # and the last repetition may be incomplete.
    attention_windows: tuple[int | None, ...] = (None, 65, 65)
    # Id of the padding token, which is masked in batches without segment ids. mmBERT: 0.
    padding_id: int = 50283
    # Which state the head of transformers' `ModernBertForSequenceClassification` reads, `cls` or `mean`; it is a key of
    # config.json.
    classifier_pooling: str = "cls"

    def __post_init__(self):
        super().__post_init__()
        checks.one_of(self, "classifier_pooling", ("cls", "mean"))

    @property
    def prediction_head(self) -> PredictionHead:
        """Parts of the masked-LM head: its dense layer and its norm have no biases."""
        return PredictionHead(transform_bias=False)

    def make(self, key: jax.Array) -> "ModernBert":
        """Returns a ModernBERT with newly initialized parameters; see `ModelConfig.make`."""
        return ModernBert(self, key=key)


class ModernBert(ModernBertLayers, RotaryEncoder):
    """ModernBERT. Implements `Model` of `models/base.py`; see `RotaryEncoder` and `ModernBertLayers`."""

    def __init__(self, config: ModernBertConfig, *, key: jax.Array):
        super().__init__(config, key=key)
        self.make_norms(config)

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Returns the normalized token embeddings as `encoder`; see `RotaryEncoder.embed`."""
        return {"encoder": self.embedding_norm(super().embed(batch)["encoder"])}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModernBertDecoderConfig(ModernBertFields, RotaryDecoderConfig):
    """Sizes and hyperparameters of Ettin's decoders; by default Ettin 150M."""

    # Number of positions, its own included, to which a position attends; None: all. Several windows repeat over the
    # layers, and the last repetition may be incomplete. transformers has 64; Ettin was trained with 65.
    attention_windows: tuple[int | None, ...] = (None, 64, 64)

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step; the dense layer of the head reads all tokens."""
        tokens = math.prod(shapes["decoder_input_tokens"])
        return super().train_flops(shapes) + 6.0 * tokens * self.embed_dim**2

    def make(self, key: jax.Array) -> "ModernBertDecoder":
        """Returns a decoder with newly initialized parameters; see `ModelConfig.make`."""
        return ModernBertDecoder(self, key=key)


class ModernBertDecoder(ModernBertLayers, RotaryDecoder):
    """Ettin's decoder. Implements `Model` and `GenerativeDecoder` of `models/base.py`.

    Attributes:
      head: Dense layer before the logits, without a bias.
      head_norm: Norm after its activation.
      bias: float32 `[vocab]`, initially 0, added to the logits.

    Further attributes are those of `RotaryDecoder` and `ModernBertLayers`.
    """

    def __init__(self, config: ModernBertDecoderConfig, *, key: jax.Array):
        super().__init__(config, key=key)
        self.make_norms(config)
        self.head = Projection(
            (config.embed_dim,),
            (config.embed_dim,),
            axes=("embed", "mlp"),
            key=jax.random.fold_in(key, 0),
            init=config.initializer,
            dtype=config.compute_dtype,
            has_dropout_key=False,
        )
        self.head_norm = config.make_norm()
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,), jnp.float32), axes=("vocab",))

    def embed_tokens(self, tokens: Int[Array, "batch length"], positions: Int[Array, "batch length"]) -> Hidden:
        """Returns the normalized token embeddings; positions enter through the rotations."""
        return self.embedding_norm(super().embed_tokens(tokens, positions))

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32."""
        activated = ACTIVATIONS[self.config.activations[0]](self.head(hidden))
        return super().unembed(self.head_norm(activated)) + self.bias[...]
