"""Quantized weights and activations of projections and embedding tables, stored as integers or rounded in training.

A quantization is chosen like an adapter, by a pattern of module names in `config.adapters`, and is stored beside the
adapter of a module, as `MODULE/quantization`: `Projection.product` and `Embedder.lookup` call it, so an adapter such as
LoRA works on a quantized base. Norms, softmax, activation functions and logits stay in floating point.

    Quantized        kernel -> quantization/{values, scale}: integers in memory and on disk, not trained
    FakeQuantized    kernel stays, rounded in each pass with straight-through gradients
    static ranges    quantization/range, the moving average of max|x|, which `ranges` updates
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like import parameters
from t5x_like.adapters.base import WeightAdapter, modules_by_name, stacked_layers
from t5x_like.adapters.pruned import Pruned
from t5x_like.adapters.ranges import RANGE, MovingRanges
from t5x_like.errors import UserError
from t5x_like.kernels import quantization as numerics
from t5x_like.kernels.quantization import LEVELS
from t5x_like.layers.embeddings import Embedder, Unembedding
from t5x_like.layers.projections import Projection
from t5x_like.recorded import recorded

CASTS = ("bfloat16", "float16")
# Weight of the old average in the moving average of the largest activations, of Q8BERT's published code.
DECAY = 0.9999


class _Quantization(nnx.Module):
    """What the two forms of quantization share: the inputs of a projection.

    Args:
      module: The projection or the table.
      settings: The settings.

    Attributes:
      range: float32 `[2]`, with static activations: see `kernels.quantization.updated`.
    """

    def __init__(self, module: Projection | Embedder, settings: "Settings"):
        # Logits are computed in float32 from activations that are not quantized.
        has_inputs = isinstance(module, Projection) and not isinstance(module, Unembedding)
        self.activations, self.dtype = settings.activations if has_inputs else None, settings.dtype
        if self.activations == "static":
            self.range = nnx.Param(jnp.zeros(2, jnp.float32), axes=(None,))

    def input_scale(self, x: Float[Array, "batch length ..."], num_inputs: int) -> Float[Array, "..."]:
        """Returns the scale of the inputs: one number of a static range, or one per position."""
        if self.activations == "static":
            average = jax.lax.stop_gradient(self.range[...])[0]
            return numerics.scale_of(average, "int8").reshape((1,) * x.ndim)
        return jax.lax.stop_gradient(numerics.scales(x, range(x.ndim - num_inputs, x.ndim), "int8"))


class StoredWeight(_Quantization):
    """The weight of a module in few bits, in place of its parameter.

    Attributes:
      values: int8 integers of the shape of the weight; uint8 with pairs of the last dimension if there are 4 bits; or
        the weight in bfloat16 or float16.
      scale: float32, the weight divided by the integers: `[1, …, *outputs]` of a kernel, `[ids, 1]` of a table, and
        size 1 everywhere for one scale per tensor. Casts have none.
    """

    def __init__(self, module: Projection | Embedder, settings: "Quantized", name: str):
        super().__init__(module, settings)
        weight, axes, reduced = _weight(module, settings.scales)
        if self.dtype in CASTS:
            self.values = nnx.Param(weight.astype(self.dtype), axes=axes)
            return
        if self.dtype == "int4" and weight.shape[-1] % 2:
            raise UserError(
                f"Quantized.dtype='int4': the last dimension of {name} is {weight.shape[-1]}, and bytes have pairs. "
                "Exclude it by Quantized.pattern, or give dtype='int8'."
            )
        scale = numerics.scales(weight, reduced, self.dtype)
        integers = numerics.quantize(weight, scale, self.dtype).qvalue
        self.values = nnx.Param(numerics.pack(integers) if self.dtype == "int4" else integers, axes=axes)
        self.scale = nnx.Param(scale, axes=tuple(None if i in reduced else axis for i, axis in enumerate(axes)))

    def weight(self, module: Projection | Embedder) -> Float[Array, "..."]:
        """Returns the weight that the integers stand for, in float32."""
        del module
        if self.dtype in CASTS:
            return self.values[...].astype(jnp.float32)
        return numerics.qwix().dequantize(self._array())

    def lookup(self, ids: Int[Array, "batch length"], embedder: Embedder) -> Float[Array, "batch length embed"]:
        """Returns the vectors of ids in float32; see `Embedder.lookup`."""
        del embedder
        values = self.values[...]
        rows = jnp.take(values, ids, axis=0, mode="clip")
        if self.dtype not in CASTS:
            rows = numerics.unpack(rows) if self.dtype == "int4" else rows
            rows = rows * jnp.take(self.scale[...], ids, axis=0, mode="clip")
        is_known = (ids >= 0) & (ids < len(values))
        return jnp.where(is_known[..., None], rows.astype(jnp.float32), jnp.nan)

    def product(
        self,
        x: Float[Array, "batch length ..."],
        projection: Projection,
        *,
        copies: int = 1,
        kernel: Float[Array, "..."] | None = None,
    ) -> Float[Array, "batch length ..."]:
        """Returns the output of the projection; see `Projection.product`.

        With quantized activations, the product is of integers, with a sum in int32. A bias is added as an integer of
        the product's scale where the range is static, which is a constant, and as a float otherwise.
        """
        del kernel  # `apply` refuses the adapters that replace it
        if self.activations is None:
            return projection.linear(x, self.weight(projection), _bias(projection), copies=copies)
        batch, num_inputs = x.ndim - projection.num_inputs, projection.num_inputs
        inputs = numerics.quantize(x, self.input_scale(x, num_inputs), "int8")
        weight, bias = self._array(), _bias(projection)
        dimensions = ((tuple(range(batch, x.ndim)), tuple(range(num_inputs))), ((), ()))
        y = numerics.qwix().dot_general(inputs, weight, dimensions)
        if bias is not None:
            y += _rounded(bias, inputs.scale, weight.scale, num_inputs) if self.activations == "static" else bias
        return jnp.repeat(y, copies, axis=batch).astype(projection.dtype)

    def _array(self) -> Any:
        values = self.values[...]
        return numerics.qwix().QArray(numerics.unpack(values) if self.dtype == "int4" else values, self.scale[...])


class RoundedWeight(_Quantization):
    """Rounds the weight and the inputs of a module in each pass; the weight is trained in float32."""

    def __init__(self, module: Projection | Embedder, settings: "FakeQuantized"):
        super().__init__(module, settings)
        self.scales, self.rate = settings.scales, 1 - settings.decay

    def weight(self, module: Projection | Embedder, replaced: Float[Array, "..."] | None = None) -> Float[Array, "..."]:
        """Returns the rounded weight, or the rounded weight that an adapter replaces it by."""
        weight, _, reduced = _weight(module, self.scales)
        return self._round(weight if replaced is None else replaced, reduced)[0]

    def lookup(self, ids: Int[Array, "batch length"], embedder: Embedder) -> Float[Array, "batch length embed"]:
        """Returns the rounded vectors of ids; see `Embedder.lookup`."""
        table = embedder.embedding[...]
        rows = jnp.take(table, ids, axis=0, mode="fill", fill_value=jnp.nan)
        if self.scales == "tensor":
            scale = jax.lax.stop_gradient(numerics.scales(table, (0, 1), self.dtype))
            return jnp.where(jnp.isnan(rows), rows, numerics.fake_quantize(rows, scale[None], self.dtype))
        return jnp.where(jnp.isnan(rows), rows, self._round(rows, (rows.ndim - 1,))[0])

    def product(
        self,
        x: Float[Array, "batch length ..."],
        projection: Projection,
        *,
        copies: int = 1,
        kernel: Float[Array, "..."] | None = None,
    ) -> Float[Array, "batch length ..."]:
        """Returns the output of the projection; see `Projection.product`.

        Inputs are not rounded before a static range has seen a batch.
        """
        own, _, reduced = _weight(projection, self.scales)
        kernel, kernel_scale = self._round(own if kernel is None else kernel, reduced)
        bias = _bias(projection)
        if self.activations is None:
            return projection.linear(x, kernel, bias, copies=copies)
        if self.activations == "static":
            x = numerics.observe(x, self.range[...], self.rate)
        scale = self.input_scale(x, projection.num_inputs)
        rounded = numerics.fake_quantize(x, scale, "int8")
        if self.activations == "static":
            is_known = jax.lax.stop_gradient(self.range[...])[1] > 0
            rounded = jnp.where(is_known, rounded, x)
            if bias is not None:
                of_product = _rounded(bias, scale, kernel_scale, projection.num_inputs)
                bias = numerics.straight_through(bias, jnp.where(is_known, of_product, bias))
        return projection.linear(rounded, kernel, bias, copies=copies)

    def _round(self, weight: Float[Array, "..."], reduced: Sequence[int]) -> tuple[Array, Array]:
        scale = jax.lax.stop_gradient(numerics.scales(weight, reduced, self.dtype))
        return numerics.fake_quantize(weight, scale, self.dtype), scale


def _bias(projection: Projection) -> Float[Array, "..."] | None:
    return projection.bias[...] if projection.has_bias else None


def _rounded(bias: Array, input_scale: Array, kernel_scale: Array, num_inputs: int) -> Float[Array, "*outputs"]:
    """Returns a bias rounded to integers of the scale of a product of integers."""
    of_outputs = kernel_scale.reshape(kernel_scale.shape[num_inputs:])
    scale = jax.lax.stop_gradient(input_scale.reshape(()) * of_outputs)
    return jax.lax.stop_gradient(jnp.round(bias / scale) * scale)


def _weight(module: Projection | Embedder, scales: str) -> tuple[Array, tuple[str | None, ...], tuple[int, ...]]:
    """Returns the weight of a module, its logical axes, and the dimensions that share a scale."""
    if isinstance(module, Projection):
        weight, axes, reduced = module.kernel[...], module.axes, tuple(range(module.num_inputs))
    else:
        weight, axes, reduced = module.embedding[...], module.embedding.get_metadata()["axes"], (1,)
    return weight, tuple(axes), tuple(range(weight.ndim)) if scales == "tensor" else reduced


def _parameter(module: Projection | Embedder) -> str:
    return "kernel" if isinstance(module, Projection) else "embedding"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(WeightAdapter):
    """The fields of both forms of quantization. A comment above each field documents it."""

    known = ()  # the types of weights
    hooks = MovingRanges()

    # Regular expression of the names of the projections and embedding tables, such as encoder/layers/attention/query.
    pattern: str = ""
    # Type of the weights: `int8`, `int4`, or, where they are not trained, also `bfloat16` or `float16`.
    dtype: str = "int8"
    # Whether each output of a kernel and each row of a table has a scale (`channel`), or all of it one (`tensor`).
    scales: Literal["channel", "tensor"] = "channel"
    # Whether the inputs of projections are int8 as well: None, `dynamic` (the range of each position is its largest
    # absolute value), or `static` (one range, a moving average of earlier batches).
    activations: Literal["dynamic", "static"] | None = None

    def __post_init__(self):
        name = type(self).__name__
        parameters.check_pattern(f"{name}.pattern", self.pattern)
        allowed = {"dtype": self.known, "scales": ("channel", "tensor"), "activations": (None, "dynamic", "static")}
        for field, values in allowed.items():
            if (value := getattr(self, field)) not in values:
                raise UserError(f"{name}.{field}={value!r} is unknown. Give one of {', '.join(map(repr, values))}.")
        if self.dtype in CASTS and self.activations is not None:
            raise UserError(
                f"{name}.activations={self.activations!r}: weights in {self.dtype} are not integers. Give "
                "activations=None, or dtype='int8'."
            )
        if self.dtype not in CASTS:
            numerics.qwix()

    @staticmethod
    def apply(model: nnx.Module, settings: Sequence["Settings"]) -> None:
        """Quantizes modules of a model; see the function `apply`."""
        apply(model, settings)


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantized(Settings):
    """Weights stored in few bits, which are not trained."""

    known = (*LEVELS, *CASTS)

    def make(self, module: Projection | Embedder, *, name: str) -> StoredWeight:
        """Makes the weight of a module.

        Args:
          module: The module of one layer, with its weight in float32.
          name: Its stored name, for messages.
        """
        return StoredWeight(module, self, name)


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeQuantized(Settings):
    """Quantization-aware training: each pass rounds weights and activations, with straight-through gradients."""

    known = tuple(LEVELS)
    float32 = ("kernel", "embedding", RANGE)
    # Whether the inputs of projections are rounded as well; see `Quantized.activations`.
    activations: Literal["dynamic", "static"] | None = "static"
    # Weight of the old average in the moving average of a static range.
    decay: float = DECAY

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.decay < 1:
            raise UserError(f"FakeQuantized.decay={self.decay}: not in [0, 1). Give a number such as {DECAY}.")

    def make(self, module: Projection | Embedder, *, name: str) -> RoundedWeight:
        """Makes the rounding of a module; see `Quantized.make`."""
        del name
        return RoundedWeight(module, self)

    def stored(self) -> Quantized:
        """Returns the settings of the same model with integers."""
        fields = (field.name for field in dataclasses.fields(Quantized))
        return Quantized(**{name: getattr(self, name) for name in fields})


def find(adapters: Iterable[Any]) -> tuple[Settings, ...]:
    """Returns the quantizations among the adapters of a configuration."""
    return tuple(each for each in adapters if isinstance(each, Settings))


def apply(model: nnx.Module, settings: Sequence[Settings]) -> nnx.Module:
    """Quantizes modules of a model.

    Modules that are already rounded become integers, with their range.

    Args:
      model: The model, which is changed.
      settings: Of several whose pattern matches a module, the first one applies.

    Returns:
      The model.

    Raises:
      UserError: A pattern matches no module.
    """
    unused, found = list(settings), modules_by_name(model, (Projection, Embedder))
    for name, layers in found.items():
        chosen = next((each for each in settings if re.search(each.pattern, name)), None)
        if chosen is None:
            continue
        unused = [each for each in unused if each is not chosen]
        make = functools.partial(chosen.make, name=name)
        for _, module in layers:
            if isinstance(chosen, Quantized) and isinstance(module.adapter, Pruned):
                raise UserError(
                    f"Quantized.pattern={chosen.pattern!r} matches {name}, whose kernel is pruned while it is trained. "
                    "Train it with FakeQuantized, or quantize the pruned run with t5x_like convert."
                )
            made = (make if stacked_layers(module) is None else jax.vmap(make))(module)
            if made.activations == "static" and module.quantization is not None:
                made.range = module.quantization.range
            setattr(module, parameters.QUANTIZATION, nnx.data(made))
            if isinstance(chosen, Quantized):
                delattr(module, _parameter(module))
    if unused:
        raise UserError(
            f"{type(unused[0]).__name__}.pattern={unused[0].pattern!r} matches no other projection or embedding table "
            f"of {type(model).__name__}. They are {', '.join(sorted(found)) or 'none'}."
        )
    return model
