"""The interface of adapters, and how they are added to a model."""

import collections
import functools
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar, runtime_checkable

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.layers.projections import Projection

# Name of the adapter within its module.
ADAPTER = "adapter"

M = TypeVar("M", bound=nnx.Module)
N = TypeVar("N", bound=nnx.Module)


@runtime_checkable
class Adapter(Protocol):
    """Adds a module to some projections of a model: a frozen dataclass with hyperparameters, such as `lora.LoRA`.

    Attributes:
      pattern: regular expression that is searched in the names of the projections, such as
        `encoder/layers/attention/query`.
    """

    pattern: str

    def make(self, projection: Projection, key: jax.Array, name: str) -> "AdapterModule":
        """Makes the module of one projection.

        Args:
          projection: the projection of one layer, also where layers are stacked. `projection.num_inputs` and
            `projection.axes` tell which dimensions of the kernel are inputs and how they are sharded.
          key: random key for the initial values.
          name: stored name of the projection, which differs between the projections of a layer.

        Raises:
          UserError: the adapter does not fit the projection.
        """


class AdapterModule(Protocol):
    """The module of an adapter in one projection."""

    def __call__(
        self, x: Float[Array, "batch length ..."], projection: Projection, *, dropout_key: jax.Array | None = None
    ) -> Float[Array, "batch length ..."]:
        """Returns the output of the projection with the adapter, `[*batch, *outputs]`.

        Args:
          x: input of the projection, `[*batch, *inputs]`.
          projection: the projection, whose `product` is its output without the adapter.
          dropout_key: random key of the block, which all of its projections get; None disables dropout.
        """

    def merged(
        self, kernel: Float[Array, "..."], bias: Float[Array, "..."] | None
    ) -> tuple[Float[Array, "..."], Float[Array, "..."] | None]:
        """Returns the kernel and the bias with which the projection has the same output without the adapter.

        Args:
          kernel: the kernel, float32 `[*inputs, *outputs]`.
          bias: the bias, float32 `[*outputs]`, or None.

        Raises:
          UserError: no kernel has the effect of the adapter.
        """


def adapt(model: M, adapters: Sequence[Adapter], key: jax.Array) -> M:
    """Adds adapters to the projections of a new model, as `PROJECTION/adapter`; other parameters keep their names.

    Initial values depend on the name of a projection and the number of its layer alone, so they are those of scanned
    layers where layers are unrolled.

    Args:
      model: the model, which is changed.
      adapters: the adapters. Of several that match a projection, the first one is added.
      key: random key for the initial values.

    Returns:
      The model.

    Raises:
      UserError: a pattern is not a regular expression, or matches no projection, or an adapter does not fit one.
    """
    for each in adapters:
        parameters.check_pattern(f"{type(each).__name__}.pattern", each.pattern)
    unused = list(adapters)
    for name, layers in _projections(model).items():
        adapter = next((each for each in adapters if re.search(each.pattern, name)), None)
        if adapter is None:
            continue
        unused = [each for each in unused if each is not adapter]
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))
        for index, projection in layers:
            count = _stacked_layers(projection)
            make = functools.partial(adapter.make, name=name)
            if count is not None:
                made = jax.vmap(make)(projection, jax.random.split(own, count))
            else:
                made = make(projection, own if index is None else jax.random.split(own, len(layers))[index])
            setattr(projection, ADAPTER, nnx.data(made))
    if unused:
        raise UserError(
            f"{type(unused[0]).__name__}.pattern={unused[0].pattern!r} matches no projection of "
            f"{type(model).__name__}. The projections are {', '.join(sorted(_projections(model)))}."
        )
    return model


def merged_kernels(model: nnx.Module) -> dict[str, Float[Array, "..."]]:
    """Returns the name of each kernel and bias with an adapter -> the array that has the same effect without it.

    Raises:
      UserError: no kernel has the effect of an adapter.
    """
    found = {}
    for name, projection in named_modules(model, Projection):
        if projection.adapter is not None:
            merge = jax.vmap(_merged) if _stacked_layers(projection) is not None else _merged
            kernel, bias = merge(projection)
            found |= {f"{name}/kernel": kernel} | ({} if bias is None else {f"{name}/bias": bias})
    return found


def _merged(projection: Projection) -> tuple[Float[Array, "..."], Float[Array, "..."] | None]:
    bias = projection.bias[...] if projection.has_bias else None
    return projection.adapter.merged(projection.kernel[...], bias)


def _projections(model: nnx.Module) -> dict[str, list[tuple[int | None, Projection]]]:
    """Returns stored name -> the projections of all layers with their numbers, or the only one with None."""
    found = collections.defaultdict(list)
    for name, projection in named_modules(model, Projection):
        stored, index = parameters.stored_name(name)
        found[stored].append((index, projection))
    return {name: sorted(layers, key=lambda pair: pair[0] or 0) for name, layers in found.items()}


def named_modules(module: nnx.Module, kind: type[N], name: str = "") -> Iterator[tuple[str, N]]:
    """Yields the modules of a class by name, such as `encoder/layers/0/attention/query`, but none within another.

    Args:
      module: the module to search.
      kind: the class.
      name: name of `module`, with which names begin.
    """
    for key, child in nnx.iter_children(module):
        path = f"{name}/{key}" if name else str(key)
        if isinstance(child, kind):
            yield path, child
        elif not isinstance(child, nnx.Variable):
            yield from named_modules(child, kind, path)


def _stacked_layers(projection: Projection) -> int | None:
    """Returns the number of layers of a projection with stacked parameters, or None."""
    kernel = projection.kernel
    return kernel.shape[0] if len(kernel.shape) > len(projection.axes) else None
