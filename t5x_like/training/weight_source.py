"""Pretrained weights to start from: where they are, which of them are read, and how they fit a model."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from t5x_like import interop, parameters, paths
from t5x_like.errors import UserError
from t5x_like.interop import t5x
from t5x_like.models import build, construct
from t5x_like.models.base import ModelConfig
from t5x_like.training import frozen_base, layer_choice, weight_files
from t5x_like.training.checkpoints import checkpoint_choice
from t5x_like.training.checkpoints.manager import Checkpoints
from t5x_like.training.frozen_base import FrozenBase

MODEL, OBJECTIVE, PARAMS = "model/", "objective/", "params/"
VOCAB = "vocab"
Shapes = dict[str, tuple[int, ...]]
Read = Callable[[Mapping[str, jax.ShapeDtypeStruct]], dict[str, Any]]
_STACK = re.compile(rf"{MODEL}(?P<stack>.+)/{parameters.LAYERS}/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """Pretrained weights to start from, and the changes that adapt them to this model.

    Attributes:
      path: A run directory, its `checkpoints` directory, one checkpoint in it (`checkpoints/400`, or `checkpoints/best`
        for the best by its evaluation), a Hugging Face directory with safetensors, or a T5X checkpoint of T5. Heads are
        restored if they match. None: all weights are fresh.
      mapping: (regex, replacement) pairs that turn a tensor name of this model or its heads, without the leading
        `model/` or `objective/`, into the name at `path`. They are applied in order. A tensor whose name becomes empty
        stays freshly initialized.
      new_tokens: Number of token ids that this model has after the ids of `path`. Their rows in the tables over the
        vocabulary stay freshly initialized; the other rows are restored.
      layers: Stack -> indices of the pretrained layers that its layers start from, such as `{"encoder": (0, 2, 4)}`, or
        a rule of `layer_choice`. The pretrained model may then have other numbers of layers. None: all layers.
      dropped: Regular expressions of names of tensors at `path` that this model does not have, such as
        `("token_type_embedder",)`. Others that it lacks are an error.
      truncated: Logical axes, `positions` or `vocab`, along which tables at `path` may be longer than the tables of the
        model, which start from their first rows.
      other_vocabulary: Whether the token ids of `path` may belong to another vocabulary than the data's. This is
        an error otherwise, unless there are new tokens or truncated vocabularies.

    Raises:
      UserError: A value is invalid.
    """

    path: str | None = None
    mapping: Sequence[tuple[str, str]] = ()
    new_tokens: int = 0
    layers: Mapping[str, Sequence[int] | layer_choice.Rule] | None = None
    dropped: Sequence[str] = ()
    truncated: Sequence[str] = ()
    other_vocabulary: bool = False

    def __post_init__(self):
        if self.new_tokens < 0:
            raise UserError(f"INITIAL_NEW_TOKENS={self.new_tokens} is negative. Give the number of new token ids.")
        for setting, value in (("INITIAL_DROPPED", self.dropped), ("INITIAL_TRUNCATED", self.truncated)):
            if isinstance(value, str):
                raise UserError(f"{setting}={value!r}: is not a sequence. Give {(value,)!r}.")

    @property
    def has_other_sizes(self) -> bool:
        """Whether the stored model has other sizes than this one, so that it is read by its own configuration."""
        return bool(self.layers or self.dropped or self.truncated)

    @property
    def has_vocabulary_of_run(self) -> bool:
        """Whether the token ids of `path` must match the data's."""
        return not (self.other_vocabulary or self.new_tokens or VOCAB in self.truncated)

    def is_dropped(self, name: str) -> bool:
        """Returns whether a tensor at `path` is one that this model does not have."""
        return any(re.search(pattern, name) for pattern in self.dropped)


@dataclasses.dataclass(frozen=True)
class Fit:
    """How a stored tensor becomes a parameter.

    Attributes:
      stored_name: its name at the source.
      stored_shape: its shape there.
      layers: indices along the first axis; None for all.
      rows: the axis along which the numbers of rows differ: the first rows are restored.
    """

    stored_name: str
    stored_shape: tuple[int, ...]
    layers: tuple[int, ...] | None = None
    rows: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the stored tensor is the parameter."""
        return self.layers is None and self.rows is None

    def apply(self, stored: Float[Array, "..."], fresh: Float[Array, "..."] | None = None) -> Float[Array, "..."]:
        """Returns the parameter.

        Args:
          stored: the stored tensor.
          fresh: the freshly initialized parameter, whose last rows complete a shorter table; not needed without `rows`.
        """
        if self.layers is not None:
            stored = stored[np.array(self.layers)]
        if self.rows is None:
            return stored
        here, there = fresh.shape[self.rows], stored.shape[self.rows]
        first = jax.lax.slice_in_dim(stored, 0, min(here, there), axis=self.rows)
        new = jax.lax.slice_in_dim(fresh, min(here, there), here, axis=self.rows)
        return jnp.concatenate([first, new], axis=self.rows)


def renamed(name: str, mapping: Sequence[tuple[str, str]]) -> str:
    """Returns the name of a parameter at a source; see `InitialWeights.mapping`."""
    root, _, name = name.partition("/")
    for pattern, replacement in mapping:
        name = re.sub(pattern, replacement, name)
    return f"{root}/{name}"


def fit(
    source: InitialWeights,
    wanted: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    axes: Mapping[str, tuple[str | None, ...]],
    stored: Mapping[str, tuple[int, ...]],
) -> dict[str, Fit]:
    """Determines which parameters a source has, and how they fit.

    Args:
      source: the source.
      wanted: stored name of a parameter here -> its name at the source.
      shapes: stored name of a parameter here -> its shape.
      axes: stored name of a parameter here -> its logical axes.
      stored: name at the source -> shape.

    Returns:
      Stored name of a parameter here -> how it is made. Parameters that the source lacks, or has in a shape that does
      not fit, are missing.

    Raises:
      UserError: `source.layers` does not fit the stacks here and at the source, or with `source.new_tokens`, no table
        over the vocabulary has that many rows fewer.
    """
    chosen = layer_choice.resolve(
        source.layers or {},
        source.path,
        _depths({name: stored[other] for name, other in wanted.items() if other in stored}),
        _depths(shapes),
    )
    found, grown = {}, False
    for name, other in wanted.items():
        if other not in stored:
            continue
        stack = match["stack"] if (match := _STACK.match(name)) else None
        candidate = Fit(other, stored[other], layers=chosen.get(stack))
        before = stored[other] if candidate.layers is None else (len(candidate.layers), *stored[other][1:])
        rows = _differing_rows(source, axes[name], before, shapes[name])
        grown |= rows is not None and before[rows] < shapes[name][rows]
        if before == shapes[name] or rows is not None:
            found[name] = dataclasses.replace(candidate, rows=rows)
    if source.new_tokens and not grown:
        raise UserError(
            f"INITIAL_NEW_TOKENS={source.new_tokens}: no table over the vocabulary at {source.path} has "
            f"{source.new_tokens} rows fewer than this model. Increase the vocab_size of the model by the number of "
            "new tokens."
        )
    return found


def _depths(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Returns stack -> number of layers."""
    return {match["stack"]: shape[0] for name, shape in shapes.items() if (match := _STACK.match(name))}


def _differing_rows(source: InitialWeights, axes, stored: tuple[int, ...], here: tuple[int, ...]) -> int | None:
    """Returns the only axis along which the shapes differ, if the source says that its rows may."""
    if len(stored) != len(here):
        return None
    differing = [axis for axis, sizes in enumerate(zip(stored, here, strict=True)) if sizes[0] != sizes[1]]
    if len(differing) != 1:
        return None
    (axis,) = differing
    is_longer = axes[axis] in source.truncated and stored[axis] > here[axis]
    is_shorter = axes[axis] == VOCAB and source.new_tokens and stored[axis] == here[axis] - source.new_tokens
    return axis if is_longer or is_shorter else None


def model_shapes(source: InitialWeights, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the tensors of the model at a source by stored name, without reading a tensor.

    Args:
      source: the source.
      config: the configuration of this model, with which the source must agree.

    Raises:
      UserError: the source is not found, or does not agree.
    """
    bare = construct.without_adapters(config)
    if weight_files.is_huggingface(source.path):
        return interop.model_shapes(source.path, bare, other_sizes=source.has_other_sizes)
    if (index := weight_files.find_t5x(source.path)) is not None:
        _check_t5x(source)
        t5x.check(index, bare)
        stacked = build.stacked_shapes(bare)
        return {MODEL + name: leaf.shape for name, leaf in parameters.named_leaves(stacked).items()}
    with _open_run(source.path, verify=False) as (shapes, _):
        return {name: shape for name, shape in shapes.items() if name.startswith(MODEL)}


@contextlib.contextmanager
def open_source(source: InitialWeights, config: ModelConfig) -> Iterator[tuple[Shapes, Read]]:
    """Yields the shapes of the tensors at a source by name, and a function that reads the wanted ones.

    Args:
      source: the source.
      config: the configuration of this model, with which the source must agree.

    Raises:
      UserError: the source is not found, does not agree, or cannot be read.
    """
    bare = construct.without_adapters(config)
    if weight_files.is_huggingface(source.path):
        leaves = interop.read(source.path, bare, other_sizes=source.has_other_sizes)
    elif (index := weight_files.find_t5x(source.path)) is not None:
        _check_t5x(source)
        leaves = t5x.read(index, bare)
    else:
        leaves = None
    if leaves is not None:
        yield (
            {name: leaf.shape for name, leaf in leaves.items()},
            lambda wanted: {name: _put(leaves[name], shape) for name, shape in wanted.items()},
        )
        return
    with _open_run(source.path) as opened:
        yield opened


def read_base(base: FrozenBase, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads parameters of a run from its base.

    Args:
      base: the base.
      wanted: stored name of a parameter in `base.leaves` -> its shape, with dtype and sharding.

    Raises:
      UserError: the base is missing, has changed, or cannot be read.
    """
    base.check()
    tensors = {name: base.leaves[name].name for name in wanted}
    if weight_files.is_huggingface(base.path):
        # The model may have other sizes than the model of the run.
        leaves = interop.read(base.path, interop.config_from_huggingface(base.path))
        return {name: _put(leaves[tensors[name]], shape) for name, shape in wanted.items()}
    with _open_run(base.path) as (_, read):
        found = read({tensors[name]: shape for name, shape in wanted.items()})
    return {name: found[tensors[name]] for name in wanted}


def resolve(path: str) -> str:
    """Returns the path of the checkpoint that a run directory stands for; other paths stay as they are."""
    step = checkpoint_choice.find_step(path)
    return path if step is None else paths.join(checkpoint_choice.locate(path)[0], str(step))


def stored_names(path: str) -> set[str]:
    """Returns the stored names of the parameters of a checkpoint of a run, `model/…` and `objective/…`."""
    with _open_run(path, verify=False) as (shapes, _):
        return set(shapes)


@contextlib.contextmanager
def _open_run(path: str, *, verify: bool = True) -> Iterator[tuple[Shapes, Read]]:
    """Yields the shapes of the parameters of a run and its base, and a function that reads the wanted ones."""
    directory, step = checkpoint_choice.locate(path)
    base = frozen_base.of_run(checkpoint_choice.run_of(path))
    reader = Checkpoints(directory, read_only=True)
    try:
        step = reader.latest() if step is None else step
        if step is None:
            raise UserError(weight_files.explain_missing(path))
        stored = below(PARAMS, reader.shapes(step, verify=verify))
        lacking = base.without(stored) if base is not None else None
        of_base = lacking.leaves if lacking is not None else {}

        def read(wanted):
            own = {PARAMS + name: shape for name, shape in wanted.items() if name not in of_base}
            others = {name: shape for name, shape in wanted.items() if name in of_base}
            found = below(PARAMS, reader.read(step, own)) if own else {}
            return found | read_base(lacking, others) if others else found

        yield stored | {name: leaf.shape for name, leaf in of_base.items()}, read
    finally:
        reader.close()


def _check_t5x(source: InitialWeights) -> None:
    if source.has_other_sizes:
        raise UserError(
            f"{source.path}: a T5X checkpoint does not describe its model, of which a part cannot be read. Convert it "
            "with t5x_like convert and give the result."
        )


def _put(leaf: np.ndarray, shape: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.make_array_from_callback(
        shape.shape, shape.sharding, lambda index: np.asarray(leaf[index], shape.dtype), dtype=shape.dtype
    )


def below(prefix: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the leaves whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}
