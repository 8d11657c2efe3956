"""The machinery under every family's mapping: a table of tensors, ours beside theirs, read in both directions."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.interop import safetensors_files

MODEL, OBJECTIVE = "model/", "objective/"
NOTHING = re.compile(r"(?!)")

Layout = Literal["same", "linear", "conv1d", "flat"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A tensor of ours and where it is in theirs.

    Attributes:
      ours: name as stored, a stack being one leaf: `model/…` or `objective/…`.
      theirs: name; `{i}` is the layer.
      layout: how theirs lies: `same`; `linear` (torch's `[outputs, inputs]`); `conv1d` (`[inputs, outputs]`, as GPT-2);
        `flat` (all dimensions in one, as the bias of several heads).
      inputs: of `linear` and `conv1d`, how many of our leading dimensions are inputs.
      part: (k, n): ours is the k-th of n equal parts of theirs along its outputs.
    """

    ours: str
    theirs: str
    layout: Layout = "same"
    inputs: int = 1
    part: tuple[int, int] = (0, 1)

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that theirs has where one layer of ours has `ours`."""
        inputs, outputs = math.prod(ours[: self.inputs]), math.prod(ours[self.inputs :]) * self.part[1]
        if self.layout == "linear":
            return (outputs, inputs)
        if self.layout == "conv1d":
            return (inputs, outputs)
        return (math.prod(ours) * self.part[1],) if self.layout == "flat" else tuple(ours)

    def read(self, theirs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Ours, of `shape`, out of theirs."""
        index, parts = self.part
        theirs = theirs.T if self.layout == "linear" else theirs
        return np.split(theirs, parts, axis=-1)[index].reshape(shape)

    def write(self, ours: np.ndarray) -> np.ndarray:
        """Theirs, or the part of it, out of ours."""
        if self.layout in ("linear", "conv1d"):
            ours = ours.reshape(math.prod(ours.shape[: self.inputs]), -1)
            return ours.T if self.layout == "linear" else ours
        return ours.reshape(-1) if self.layout == "flat" else ours

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Theirs out of all its parts, in order."""
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=0 if self.layout == "linear" else -1)


def dense(ours: str, theirs: str, *, bias: bool = True, layout: Layout = "linear", inputs: int = 1) -> list[Row]:
    """The rows of a projection: its kernel and, where it has one, its bias."""
    kernel = Row(f"{ours}/kernel", f"{theirs}.weight", layout, inputs)
    return [kernel, Row(f"{ours}/bias", f"{theirs}.bias", "flat")] if bias else [kernel]


def norm(ours: str, theirs: str, *, bias: bool = True) -> list[Row]:
    """The rows of a norm: its scale and, for a LayerNorm, its bias."""
    return [Row(f"{ours}/scale", f"{theirs}.weight")] + ([Row(f"{ours}/bias", f"{theirs}.bias")] if bias else [])


@dataclasses.dataclass(frozen=True)
class Family:
    """How transformers stores a family.

    Attributes:
      model_types: the `model_type`s of a config.json that it reads.
      config_class: our configuration.
      config_from: contents of a config.json -> our configuration; `dtype` and layout are left to the platform. What is
        refused raises a UserError that names the key; the file is added by the caller.
      config_to: (configuration, names of the objective's tensors) -> contents of a config.json, `architectures` among
        them; UserError where transformers has no such network.
      table: the rows of a configuration, heads that objectives may own included.
      prefix: what every name of the network itself begins with, or one a model type; files of the bare network are
        without it.
      free: fields of our configuration that do not change what the parameters mean, besides those of every family.
      renamed: (regex, replacement) pairs for names that old files have.
      ignored: names of tensors that nothing needs: copies, buffers, heads that there are none of here.
      zeros: names of tensors that ours has no place for, and that must be 0 everywhere.
      tied: their name of a copy -> of the tensor that it must equal.
    """

    model_types: tuple[str, ...]
    config_class: type
    config_from: Callable[[Mapping[str, Any]], Any]
    config_to: Callable[[Any, Iterable[str]], dict[str, Any]]
    table: Callable[[Any], list[Row]]
    prefix: str | tuple[str, ...] = ""
    free: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    ignored: re.Pattern = NOTHING
    zeros: re.Pattern = NOTHING
    tied: Callable[[Any], Mapping[str, str]] = lambda config: {}


def read(folder: str, family: Family, config: Any) -> dict[str, np.ndarray]:
    """The tensors of a folder by our stored names, in float32: the whole network, and the heads that are there.

    Args:
      folder: local folder or bucket with safetensors.
      family: how they are named.
      config: the network's configuration.

    Raises:
      UserError: a tensor is missing or of the wrong shape, or one is there that nothing has a place for.
    """
    source = _Source(folder, family)
    leaves: dict[str, np.ndarray] = {}
    expected = _shapes(config)
    for row in family.table(config):
        if row.ours in expected:
            shape, layers = expected[row.ours]
        elif row.ours.startswith(OBJECTIVE) and source.has(row.theirs):
            shape, layers = row.shape(source.shape(row.theirs)), None  # a head has no dimension that theirs joins
        else:
            continue
        if layers is None:
            leaves[row.ours] = source.take(row, row.theirs, shape)
        else:
            leaves[row.ours] = np.stack([source.take(row, row.theirs.format(i=i), shape) for i in range(layers)])
    source.check_rest(config)
    return leaves


def write(family: Family, config: Any, leaves: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Their tensors, float32, from ours by stored names; also those of a tree like a network, such as its gradient.

    Raises:
      UserError: a tensor has no place in theirs.
    """
    rows = {row.ours: row for row in family.table(config)}
    if unknown := sorted(set(leaves) - set(rows)):
        raise UserError(f"transformers' {family.model_types[0]} has no place for {unknown[0]!r}")
    parts: dict[str, dict[int, np.ndarray]] = {}
    whole: dict[str, Row] = {}
    for name, leaf in leaves.items():
        row = rows[name]
        each = enumerate(leaf) if "{i}" in row.theirs else [(0, leaf)]
        for i, array in each:
            theirs = row.theirs.format(i=i)
            parts.setdefault(theirs, {})[row.part[0]] = row.write(np.asarray(array, np.float32))
            whole[theirs] = row
    return {theirs: whole[theirs].join([found[k] for k in sorted(found)]) for theirs, found in parts.items()}


def _shapes(config) -> dict[str, tuple[tuple[int, ...], int | None]]:
    """Our stored names with the shape of one layer and the number of layers, None where there are none."""
    model = jax.eval_shape(dataclasses.replace(config, scan_layers=True).make, jax.random.key(0))
    axes = parameters.logical_axes(model)
    shapes = {}
    for name, leaf in parameters.named_leaves(model).items():
        stacked = parameters.LAYERS in axes[name]
        shapes[MODEL + name] = (tuple(leaf.shape[1:]), leaf.shape[0]) if stacked else (tuple(leaf.shape), None)
    return shapes


class _Source:
    """A folder's tensors by the table's names, whatever prefix or old spelling they have there."""

    def __init__(self, folder: str, family: Family):
        self._folder, self._family = folder, family
        self._prefixes = (family.prefix,) if isinstance(family.prefix, str) else family.prefix
        self._tensors = safetensors_files.Tensors(folder)
        self._actual = {self._canonical(name): name for name in self._tensors}
        self._used: set[str] = set()

    def _canonical(self, name: str) -> str:
        for pattern, replacement in self._family.renamed:
            name = re.sub(pattern, replacement, name)
        return name

    def _find(self, name: str) -> str | None:
        bare = next((name.removeprefix(prefix) for prefix in self._prefixes if name.startswith(prefix)), name)
        return self._actual.get(name) or self._actual.get(bare)

    def has(self, name: str) -> bool:
        return self._find(name) is not None

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors.shapes[self._find(name)]

    def take(self, row: Row, name: str, shape: tuple[int, ...]) -> np.ndarray:
        actual, expected = self._find(name), row.shape(shape)
        if actual is None or self._tensors.shapes[actual] != expected:
            found = "is missing" if actual is None else f"has shape {self._tensors.shapes[actual]}"
            raise UserError(
                f"{self._folder}: tensor {actual or name!r} {found}; {row.ours} {shape} needs it in shape {expected}"
            )
        self._used.add(actual)
        return row.read(self._tensors[actual].astype(np.float32), shape)

    def check_rest(self, config) -> None:
        """Refuses a copy that differs from what it is tied to, and what nothing has a place for unless it is 0."""
        for copy, original in self._family.tied(config).items():
            found, other = self._find(copy), self._find(original)
            if found is None or found in self._used:
                continue
            if not np.array_equal(self._tensors[found], self._tensors[other]):
                raise UserError(
                    f"{self._folder}: {found!r} differs from {other!r}, with which this network ties it; "
                    "there is no place for logits of their own"
                )
            self._used.add(found)
        for spelt, name in self._actual.items():
            if self._family.zeros.fullmatch(spelt):
                if np.any(self._tensors[name]):
                    raise UserError(
                        f"{self._folder}: {name!r} is not 0 everywhere; this {self._family.config_class.__name__} has "
                        "no place for it, and would compute something else"
                    )
                self._used.add(name)
        strangers = [
            name for spelt, name in self._actual.items() if name not in self._used and not self._ignored(spelt)
        ]
        if strangers:
            raise UserError(
                f"{self._folder} has {len(strangers)} tensors that this {self._family.config_class.__name__} has no "
                f"place for, such as {strangers[0]!r}"
            )

    def _ignored(self, name: str) -> bool:
        return any(self._family.ignored.fullmatch(prefix + name) for prefix in ("", *self._prefixes))
