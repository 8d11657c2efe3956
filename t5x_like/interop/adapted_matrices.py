"""The matrices of transformers that adapters in the files of other libraries change."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like.adapters.base import ADAPTER, Adapter
from t5x_like.interop import tables
from t5x_like.interop.tables import Family, HeadClass, TensorMapping
from t5x_like.layers.projections import Projection
from t5x_like.models.base import ModelConfig

_SUFFIX = ".weight"


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A matrix of transformers, and the projections of one layer that are its parts.

    Attributes:
      projections: index of a part -> stored name of the projection, `model/…`, with its mapping and the shape of its
        kernel.
      parts: number of parts.
      layer: number of the layer, or None outside of stacks.
      layers: number of layers of the stack, or None.
    """

    projections: dict[int, tuple[str, TensorMapping, tuple[int, ...]]]
    parts: int
    layer: int | None
    layers: int | None

    def leaf(self, leaves: Mapping[str, Any], name: str) -> Float[np.ndarray, "..."]:
        """Returns a parameter of the layer in float32."""
        found = np.asarray(leaves[name], np.float32)
        return found if self.layer is None else found[self.layer]

    def put(self, leaves: dict[str, Any], name: str, value: Float[np.ndarray, "..."], fill: float = 0.0) -> None:
        """Stores a parameter of the layer. The other layers of a stack have the value `fill` at first."""
        if self.layer is None:
            leaves[name] = value
        else:
            leaves.setdefault(name, np.full((self.layers, *value.shape), fill, np.float32))[self.layer] = value


def find(family: Family, config: ModelConfig) -> dict[str, Matrix]:
    """Returns the name of each matrix in transformers -> its projections."""
    shapes = tables.shapes(config)
    found: dict[str, Matrix] = {}
    for mapping in family.table(config):
        if mapping.name not in shapes or not mapping.name.endswith("/kernel"):
            continue
        shape, layers = shapes[mapping.name]
        for layer in range(layers or 1):
            module = mapping.hf_name.format(i=layer).removesuffix(_SUFFIX)
            matrix = found.setdefault(module, Matrix({}, mapping.part[1], None if layers is None else layer, layers))
            matrix.projections[mapping.part[0]] = (mapping.name.removesuffix("/kernel"), mapping, shape)
    return found


def module_name(name: str, family: Family, head_class: HeadClass | None, architecture: str) -> str:
    """Returns the name of a matrix in a class of transformers. A bare model has the names without the prefix."""
    if head_class is not None:
        return head_class.model_name(name)
    is_bare = architecture.endswith("Model") and not architecture.endswith("LMHeadModel")
    return without_prefix(name, family) if is_bare else name


def without_prefix(name: str, family: Family) -> str:
    """Returns the name of a matrix in the bare model of a family."""
    prefixes = (family.prefix,) if isinstance(family.prefix, str) else family.prefix
    return next((name.removeprefix(each) for each in prefixes if name.startswith(each)), name)


def pattern_of(names: Iterable[str]) -> str:
    """Returns the `pattern` of adapters that match the projections with these stored parameters of adapters alone."""
    projections = sorted({name.removeprefix(tables.MODEL).split(f"/{ADAPTER}/")[0] for name in names})
    return f"^({'|'.join(map(re.escape, projections))})$"


def adapter_of(adapters: Iterable[Adapter], name: str) -> Any:
    """Returns the adapter of a projection, `model/…`; see `adapters.base.adapt`."""
    of_projections = (each for each in adapters if each.target is Projection)
    return next(each for each in of_projections if re.search(each.pattern, name.removeprefix(tables.MODEL)))
