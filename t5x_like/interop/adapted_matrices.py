"""The matrices of transformers that adapters in the files of other libraries change."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from t5x_like.adapters.base import ADAPTER, Adapter
from t5x_like.interop import tables
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping
from t5x_like.layers.projections import Projection
from t5x_like.models.base import ModelConfig

_SUFFIX, _BIAS = ".weight", "/bias"
# Layouts of the modules of transformers that other libraries adapt, `Linear` and `Conv1D`.
_LAYOUTS = ("linear", "conv1d")


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A matrix of transformers, and the projections of one layer that are its parts.

    Attributes:
      projections: index of a part -> stored name of the projection, `model/…`, with its mapping and the shape of its
        kernel.
      parts: number of parts.
      layer: number of the layer, or None outside of stacks.
      layers: number of layers of the stack, or None.
      later_biases: indices of the parts whose bias is not in the module, but added to its output.
    """

    projections: dict[int, tuple[str, TensorMapping, tuple[int, ...]]]
    parts: int
    layer: int | None
    layers: int | None
    later_biases: set[int] = dataclasses.field(default_factory=set)

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        _, mapping, shape = next(iter(self.projections.values()))
        return math.prod(shape[: mapping.input_dims])

    @property
    def outputs(self) -> int:
        """Number of outputs of all parts."""
        _, mapping, shape = next(iter(self.projections.values()))
        return math.prod(shape[mapping.input_dims :]) * self.parts

    def rows(self, part: int) -> Int[np.ndarray, " outputs"]:
        """Returns which outputs belong to a part: a block of them, or one per group where parts alternate."""
        _, mapping, _ = self.projections[part]
        return np.arange(self.outputs).reshape(mapping.groups, self.parts, -1)[:, part].reshape(-1)

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

    def put_update(
        self,
        leaves: dict[str, Any],
        part: int,
        down: Float[np.ndarray, "rank inputs"],
        up: Float[np.ndarray, "outputs rank"],
        rank: int,
    ) -> None:
        """Stores the low-rank update of a part.

        Args:
          leaves: stored name -> parameter, which gets A and B.
          part: index of the part.
          down: A of the whole matrix.
          up: B of the part.
          rank: rank of the parameters; a smaller one of the update is filled with zeros.
        """
        name, mapping, shape = self.projections[part]
        inputs, outputs = shape[: mapping.input_dims], shape[mapping.input_dims :]
        missing = rank - len(down)
        down, up = np.pad(down.T, ((0, 0), (0, missing))), np.pad(up.T, ((0, missing), (0, 0)))
        self.put(leaves, f"{name}/{ADAPTER}/down", down.reshape(*inputs, rank))
        self.put(leaves, f"{name}/{ADAPTER}/up", up.reshape(rank, *outputs))


def find(family: Family, config: ModelConfig) -> dict[str, Matrix]:
    """Returns the name of each matrix in transformers that is a module of its own -> its projections."""
    shapes, table = tables.shapes(config), family.table(config)
    biases = {mapping.name: mapping.hf_name for mapping in table if mapping.name.endswith(_BIAS)}
    found: dict[str, Matrix] = {}
    for mapping in table:
        if mapping.name not in shapes or not mapping.name.endswith("/kernel"):
            continue
        if mapping.layout not in _LAYOUTS or not mapping.hf_name.endswith(_SUFFIX):
            continue
        shape, layers = shapes[mapping.name]
        for layer in range(layers or 1):
            module = mapping.hf_name.format(i=layer).removesuffix(_SUFFIX)
            matrix = found.setdefault(module, Matrix({}, mapping.part[1], None if layers is None else layer, layers))
            name = mapping.name.removesuffix("/kernel")
            matrix.projections[mapping.part[0]] = (name, mapping, shape)
            bias = mapping.hf_name.removesuffix(_SUFFIX) + ".bias"
            if biases.get(name + _BIAS, bias) != bias:
                matrix.later_biases.add(mapping.part[0])
    return found


def module_name(name: str, family: Family, head_class: HeadClass | None, architecture: str) -> str:
    """Returns the name of a matrix in a class of transformers. A bare model has the names without the prefix."""
    if head_class is not None:
        return head_class.model_name(name)
    return without_prefix(name, family) if is_bare(architecture) else name


def is_bare(architecture: str) -> bool:
    """Returns whether a class of transformers has no head."""
    return architecture.endswith("Model") and not architecture.endswith("LMHeadModel")


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
