"""The interfaces of models and their configurations, and the fields that all configurations share."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.adapters import model_adapters
from t5x_like.adapters.base import Adapter, WeightAdapter
from t5x_like.adapters.model_adapters import ModelAdapter
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.captures import Edit
from t5x_like.models import checks
from t5x_like.models.outputs import Outputs
from t5x_like.models.special_tokens import SpecialTokens

# Model feature -> array, `[batch, length]` unless the feature says otherwise.
Batch = Mapping[str, Array]


@runtime_checkable
class Model(Protocol):
    """A model: an `nnx.Module` that maps tokens to hidden states and hidden states to logits.

    Attributes:
      config: The configuration that the model was built from.
    """

    config: "ModelConfig"

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Embeds the input tokens.

        Args:
          batch: Features by name.

        Returns:
          The input of each stack, by name: `encoder`, `decoder` or both.
        """

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
    ) -> Outputs:
        """Computes everything between the embeddings and the logits.

        Args:
          embedded: Result of `embed`.
          batch: Features by name, from which masks and positions are computed.
          dropout_key: Random key of dropout; None disables dropout.
          capture: Names of intermediate arrays to return.
          edits: Interventions in intermediate arrays of the same names.

        Returns:
          The last hidden states and the captured arrays.
        """

    def unembed(self, hidden: Hidden) -> Float[Array, "batch length vocab"]:
        """Computes logits in float32.

        Args:
          hidden: Hidden states, as in `Outputs.hidden`.
        """

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
    ) -> Outputs:
        """Returns `trunk(embed(batch), batch)`."""


@runtime_checkable
class GenerativeModel(Model, Protocol):
    """A model that decodes one or several tokens at a time over a cache of keys and values."""

    def decode_step(
        self, tokens: Int[Array, "batch positions"], cache: Any, index: Int[Array, ""]
    ) -> tuple[Float[Array, "batch positions embed"], Any]:
        """Runs the decoder on one or several positions.

        A caller keeps some of several positions, such as the guesses of a smaller model that this one confirms
        (Leviathan et al. 2023): its next step starts at the first position that it does not keep, and replaces those
        after it.

        Args:
          tokens: Input tokens at slots from `index`.
          cache: Keys and values of all earlier slots. It has slots for all positions.
          index: Slot of the first tokens in the cache, the same for all rows.

        Returns:
          The hidden states from which `unembed` predicts the next tokens, and the updated cache.
        """


@runtime_checkable
class GenerativeEncoderDecoder(GenerativeModel, Protocol):
    """An encoder-decoder that generates an answer to its encoder's input."""

    def encode(self, batch: Batch) -> Any:
        """Runs the encoder once for all steps of decoding.

        Args:
          batch: `encoder_input_tokens` and optionally other encoder features.

        Returns:
          The input of `init_cache`.
        """

    def init_cache(self, batch_size: int, cache_length: int, encoded: Any) -> Any:
        """Creates an empty cache with the keys and values of the cross-attention.

        Args:
          batch_size: Number of rows.
          cache_length: Number of decoder positions in the cache.
          encoded: Result of `encode`.

        Returns:
          The cache for the first `decode_step`.
        """


@runtime_checkable
class GenerativeDecoder(GenerativeModel, Protocol):
    """A decoder-only model that continues prompts."""

    def prefill(
        self, batch: Batch, cache_length: int, num_positions: int = 1
    ) -> tuple[Float[Array, "batch 1 embed"], Any]:
        """Runs the decoder on whole prompts.

        Args:
          batch: Prompts that end at the same slot (`decoding.start.left_pad`).
          cache_length: Number of slots in the cache, including the prompts' slots.
          num_positions: Largest number of positions of a step.

        Returns:
          The hidden states of the last tokens, from which `unembed` predicts the next ones, and the cache of keys and
          values.
        """


@dataclasses.dataclass(frozen=True)
class StackInfo:
    """The sizes of a stack of layers.

    Attributes:
      num_layers: Number of applications of a layer, each of which has captures of its own.
      embed_dim: Size of a hidden state.
      num_heads: Number of query heads of the self-attention.
      num_kv_heads: Number of key and value heads of the self-attention.
      head_dim: Size of the queries, keys and values of a head.
      stored_layers: Number of layers with parameters; None for `num_layers`, and fewer if layers are repeated.
    """

    num_layers: int
    embed_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    stored_layers: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "stored_layers", self.stored_layers or self.num_layers)


@dataclasses.dataclass(frozen=True)
class PredictionHead:
    """The parts of the masked-LM head of a family, before and after the product with the token embeddings.

    Attributes:
      transform: Whether a dense layer, an activation and a norm come before.
      transform_bias: Whether the dense layer and the norm have biases.
      plain_norm: Whether the norm has neither a scale nor a bias.
      activation: The activation; None for the first one of the feed-forward blocks.
      dropout: Whether dropout with the rate of the model's blocks comes after the norm.
      output_bias: Whether a bias per token is added to the logits.
      stddev: Standard deviation of the initial kernel, truncated at twice its value; None for BERT's.
    """

    transform: bool = True
    transform_bias: bool = True
    plain_norm: bool = False
    activation: str | None = None
    dropout: bool = False
    output_bias: bool = True
    stddev: float | None = None


@runtime_checkable
class ModelConfig(Protocol):
    """A model's configuration: a frozen dataclass, see `BaseConfig`.

    Attributes:
      vocab_size: Number of rows of the embedding table; token ids are smaller.
      special_tokens: Special token ids of imported weights, or None.
      remat: Rematerialization policy.
      dtype: Dtype of activations, or None if the platform decides.
      scan_layers: Whether layers are stacked and scanned, or None if the platform decides.
      adapters: What `construct.make` adds to the projections of a model, a prompt, and a prefix.
    """

    vocab_size: int
    special_tokens: SpecialTokens | None
    remat: str
    dtype: str | None
    scan_layers: bool | None
    adapters: Sequence[Adapter | ModelAdapter | WeightAdapter]

    @property
    def compute_dtype(self) -> str:
        """Dtype of activations."""

    @property
    def stacks(self) -> Mapping[str, StackInfo]:
        """Stack -> its sizes: `encoder`, `decoder` or both."""

    @property
    def reads(self) -> Sequence[str]:
        """The features of a batch that the model reads, those that it needs and those that it may do without."""

    @property
    def parts(self) -> Mapping[str, "ModelConfig"]:
        """Name -> configuration of a model whose weights parts of this model may start from; mostly none."""

    def make(self, key: jax.Array) -> Model:
        """Returns a model with newly initialized parameters; works under `jax.jit` and `jax.eval_shape`.

        Args:
          key: Random key of the initialization.
        """

    def train_flops(self, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Returns the floating-point operations of one training step, forward and backward.

        Args:
          shapes: Shapes of the features of a global batch, by name.
        """

    def initial_carry(self, batch_size: int) -> dict[str, Array]:
        """Returns the state before the first batch, which a call then takes as `carry` and returns as `Outputs.carry`.

        Args:
          batch_size: Rows of a batch.

        Returns:
          Name -> array `[batch, …]`; empty for a model without state.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseConfig:
    """The fields that every family's configuration has. A family sets a default of `vocab_size`.

    A comment above each field documents it, here and in the families.
    """

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int
    # Special token ids of imported weights. They are written again on export and not used otherwise.
    special_tokens: SpecialTokens | None = None
    # What the backward pass recomputes, a key of `layers.stacks.REMAT_POLICIES`: 'none' (keep everything), 'dots' (keep
    # the results of projections and of fused attention), 'attention' (keep the results of fused attention) or 'full'
    # (recompute whole layers).
    remat: str = "none"
    # Dtype of activations: 'bfloat16' or 'float32'. None: `for_platform` sets it, and without it float32 is used.
    # Parameters are always float32.
    dtype: str | None = None
    # Whether layers are stacked and scanned. None: `for_platform` sets it, and without it layers are unrolled.
    scan_layers: bool | None = None
    # What is added to projections, such as (@lora.LoRA(),), a prompt, @prompt.Prompt(), and a prefix, @prefix.Prefix().
    adapters: tuple[Adapter | ModelAdapter | WeightAdapter, ...] = ()

    # What adapters need (their attribute `needs`) and the family does not have -> why.
    lacks: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self):
        checks.positive_integers(self, "vocab_size")
        checks.remat_and_dtype(self)
        checks.adapters(self)

    @property
    def compute_dtype(self) -> str:
        """Dtype of activations."""
        return self.dtype or "float32"

    @property
    def reads(self) -> tuple[str, ...]:
        """Features of a batch that the model reads; see `ModelConfig.reads`."""
        return tuple(
            f"{stack}_{name}" for stack in self.stacks for name in ("input_tokens", "segment_ids", "positions")
        )

    def stack(self, num_layers: int, stored_layers: int | None = None) -> StackInfo:
        """Returns the sizes of a stack of a family whose stacks differ in their layers alone; see `StackInfo`."""
        kv_heads = getattr(self, "num_kv_heads", None) or self.num_heads
        return StackInfo(num_layers, self.embed_dim, self.num_heads, kv_heads, self.head_dim, stored_layers)

    def initial_carry(self, batch_size: int) -> dict[str, Array]:
        """Returns the state before the first batch: none. See `ModelConfig.initial_carry`."""
        return {}

    @property
    def parts(self) -> Mapping[str, ModelConfig]:
        """Name -> configuration of a model whose weights parts of this model may start from; none by default."""
        return {}

    @property
    def unembed_dim(self) -> int:
        """Size of the vectors that `unembed` reads, if a head transforms hidden states before."""
        return self.embed_dim

    @property
    def prediction_head(self) -> PredictionHead:
        """Parts of the masked-LM head, by default BERT's."""
        return PredictionHead()

    @property
    def untied_dim(self) -> int:
        """Number of last features of a hidden state that token embeddings lack. The masked-LM head unembeds them."""
        return 0


class BaseModel(nnx.Module):
    """The base class of models, whose call runs `embed` and `trunk`.

    A prompt of `config.adapters` comes before the tokens of `batch`. Captures have its positions, hidden states do not.
    """

    def __call__(
        self,
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[Edit] = (),
    ) -> Outputs:
        """Returns `trunk(embed(batch), batch)`."""
        batch = model_adapters.extend(self.config, batch)
        outputs = self.trunk(self.embed(batch), batch, dropout_key=dropout_key, capture=capture, edits=edits)
        return outputs.replace(hidden=model_adapters.remove(self.config, outputs.hidden))


# Defaults of model configurations per platform. Stacks are unrolled on CPU, where a scan over layers costs 20 to 25 %,
# and on GPUs, where XLA copies each activation to and from an array of all layers (docs/performance.md).
_PLATFORM_DEFAULTS = {
    "cpu": {"dtype": "float32", "scan_layers": False},
    "gpu": {"dtype": "bfloat16", "scan_layers": False},
    "tpu": {"dtype": "bfloat16", "scan_layers": True},
}


def for_platform(config: Any, platform: str) -> Any:
    """Fills in the fields of a model configuration that depend on the platform.

    Args:
      config: A dataclass whose `dtype` and `scan_layers` may be None.
      platform: `cpu`, `gpu` (or `cuda`, `rocm`) or `tpu`.

    Returns:
      The configuration with the platform's defaults in place of None.
    """
    defaults = _PLATFORM_DEFAULTS["gpu" if platform in ("cuda", "rocm") else platform]
    unset = {name: value for name, value in defaults.items() if getattr(config, name, value) is None}
    return dataclasses.replace(config, **unset)
