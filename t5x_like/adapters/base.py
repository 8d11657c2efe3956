"""The interface of adapters, and how they are added to a model."""

import collections
import functools
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.layers.blocks import TransformerLayer
from t5x_like.layers.embeddings import Embedder
from t5x_like.layers.projections import Projection

# Name of the adapter within its module.
ADAPTER = "adapter"

# Class of the modules that have adapters -> its name in messages.
_NOUNS = {Projection: "projection", Embedder: "embedding table", TransformerLayer: "layer"}

M = TypeVar("M", bound=nnx.Module)
N = TypeVar("N", bound=nnx.Module)


@runtime_checkable
class Adapter(Protocol):
    """Adds a module to some modules of a model: a frozen dataclass with hyperparameters, such as `lora.LoRA`.

    Attributes:
      pattern: Regular expression that is searched in the names of the modules, such as
        `encoder/layers/attention/query`.
      target: Class of these modules: `Projection`, `Embedder` or `TransformerLayer`.

    Optional attributes are `hooks`, what it needs of a run (`lifecycle.Hooks`), `float32`
    (`lifecycle.kept_in_float32`), `needs`, the name of what a family may lack (`models.base.BaseConfig.lacks`),
    `check_merge(model)`, which raises an error if no parameters have its effect in the whole model, and
    `is_quantizable`, whether integers can replace the kernels that its modules have been trained with.
    """

    pattern: str
    target: ClassVar[type[nnx.Module]]

    def make(self, module: Any, key: jax.Array, name: str) -> "AdapterModule":
        """Makes the adapter of one module.

        Args:
          module: The module of one layer, also where layers are stacked. `num_inputs` and `axes` of a projection tell
            which dimensions of the kernel are inputs and how they are sharded.
          key: Random key for the initial values.
          name: Stored name of the module, which differs between the modules of a layer.

        Raises:
          UserError: The adapter does not fit the module.
        """


class WeightAdapter:
    """Changes how modules hold their weights, in a slot beside their adapter: `quantization.Settings`."""

    @staticmethod
    def apply(model: nnx.Module, settings: "Sequence[WeightAdapter]") -> None:
        """Changes the weights of a new model that has its other adapters already.

        Args:
          model: The model, which is changed.
          settings: All of this kind. Of several whose pattern matches a module, the first one applies.

        Raises:
          UserError: A pattern matches no module.
        """
        raise NotImplementedError


class AdapterModule(Protocol):
    """The module of an adapter. `ProjectionAdapter` adds the call of a projection."""

    def merged(self, module: Any) -> dict[str, Float[Array, "..."]]:
        """Returns parameters of a module with which it has the same output without the adapter.

        Args:
          module: The module that has the adapter, with parameters in float32.

        Returns:
          Name of each parameter that changes, such as `kernel` -> its value.

        Raises:
          UserError: No parameters have the effect of the adapter.
        """


class ProjectionAdapter(AdapterModule, Protocol):
    """The module of an adapter in one projection."""

    def __call__(
        self, x: Float[Array, "batch length ..."], projection: Projection, *, dropout_key: jax.Array | None = None
    ) -> Float[Array, "batch length ..."]:
        """Returns the output of the projection with the adapter, `[*batch, *outputs]`.

        Args:
          x: Input of the projection, `[*batch, *inputs]`.
          projection: The projection, whose `product` is its output without the adapter.
          dropout_key: Random key of the block, which all of its projections get; None disables dropout.
        """


def adapt(model: M, adapters: Sequence[Adapter], key: jax.Array) -> M:
    """Adds adapters to the modules of a new model, as `MODULE/adapter`; other parameters keep their names.

    Initial values depend on the name of a module and the number of its layer alone, so they are those of scanned layers
    where layers are unrolled.

    Args:
      model: The model, which is changed.
      adapters: The adapters. Of several that match a module, the first one is added.
      key: Random key for the initial values.

    Returns:
      The model.

    Raises:
      UserError: A pattern is not a regular expression, or matches no module, or an adapter does not fit one.
    """
    for each in adapters:
        parameters.check_pattern(f"{type(each).__name__}.pattern", each.pattern)
    unused = list(adapters)
    for name, layers in modules_by_name(model, tuple(_NOUNS)).items():
        fitting = (each for each in adapters if isinstance(layers[0][1], each.target))
        adapter = next((each for each in fitting if re.search(each.pattern, name)), None)
        if adapter is None:
            continue
        unused = [each for each in unused if each is not adapter]
        own = jax.random.fold_in(key, zlib.crc32(name.encode()))
        for index, module in layers:
            if module.adapter is not None:
                raise UserError(
                    f"{type(adapter).__name__}.pattern={adapter.pattern!r} matches {name}, which has a prompt or a "
                    "prefix. Change the pattern, or remove the prompt or the prefix."
                )
            count = stacked_layers(module)
            make = functools.partial(adapter.make, name=name)
            if count is not None:
                made = jax.vmap(make)(module, jax.random.split(own, count))
            else:
                made = make(module, own if index is None else jax.random.split(own, len(layers))[index])
            setattr(module, ADAPTER, nnx.data(made))
    if unused:
        noun, found = _NOUNS[unused[0].target], modules_by_name(model, tuple(_NOUNS)).items()
        names = ", ".join(sorted(name for name, layers in found if isinstance(layers[0][1], unused[0].target)))
        raise UserError(
            f"{type(unused[0]).__name__}.pattern={unused[0].pattern!r} matches no {noun} of {type(model).__name__}. "
            f"The {noun}s are {names or 'none'}."
        )
    return model


def merged_parameters(model: nnx.Module) -> dict[str, Float[Array, "..."]]:
    """Returns the name of each parameter that adapters change -> the array that has the same effect without them.

    Raises:
      UserError: No parameters have the effect of an adapter.
    """
    found = {}
    for name, module in named_modules(model, tuple(_NOUNS)):
        if module.adapter is not None:
            merge = jax.vmap(_merged) if stacked_layers(module) is not None else _merged
            found |= {f"{name}/{parameter}": value for parameter, value in merge(module).items()}
    return found


def _merged(module: Any) -> dict[str, Float[Array, "..."]]:
    return module.adapter.merged(module)


def dense_parameters(model: nnx.Module) -> dict[str, Float[Array, "..."]]:
    """Returns the name of each parameter that a weight adapter replaces or rounds -> the value that it stands for."""
    found = {}
    for name, module in named_modules(model, (Projection, Embedder)):
        if module.quantization is not None:
            weight = _dense_weight if stacked_layers(module) is None else jax.vmap(_dense_weight)
            found[f"{name}/{'kernel' if isinstance(module, Projection) else 'embedding'}"] = weight(module)
    return found


def _dense_weight(module: Projection | Embedder) -> Float[Array, "..."]:
    return module.quantization.weight(module)


def modules_by_name(model: nnx.Module, kinds: tuple[type[N], ...]) -> dict[str, list[tuple[int | None, N]]]:
    """Returns stored name -> the modules of all layers with their numbers, or the only one with None.

    Args:
      model: The model.
      kinds: Classes of the modules.
    """
    found = collections.defaultdict(list)
    for name, module in named_modules(model, kinds):
        stored, index = parameters.stored_name(f"{name}/")
        found[stored.rstrip("/")].append((index, module))
    return {name: sorted(layers, key=lambda pair: pair[0] or 0) for name, layers in found.items()}


def named_modules(module: nnx.Module, kind: type[N] | tuple[type[N], ...], name: str = "") -> Iterator[tuple[str, N]]:
    """Yields the modules of a class by name, such as `encoder/layers/0/attention/query`.

    Args:
      module: The module to search.
      kind: The class, or several.
      name: Name of `module`, with which names begin.
    """
    for key, child in nnx.iter_children(module):
        path = f"{name}/{key}" if name else str(key)
        if isinstance(child, kind):
            yield path, child
        if not isinstance(child, nnx.Variable):
            yield from named_modules(child, kind, path)


def stacked_layers(module: nnx.Module) -> int | None:
    """Returns the number of layers of a module with stacked parameters, or None."""
    name, axes = next(iter(parameters.logical_axes(module).items()))
    return parameters.named_leaves(module)[name].shape[0] if axes[:1] == (parameters.LAYERS,) else None
