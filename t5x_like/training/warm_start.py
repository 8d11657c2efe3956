"""Initializes a run from pretrained weights, given by INITIAL_CHECKPOINT_PATH."""

import contextlib
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from t5x_like import interop, optimizers, parameters, partitioning
from t5x_like.errors import UserError
from t5x_like.interop import t5x
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Objective
from t5x_like.training import checkpoint_choice, weight_files
from t5x_like.training.checkpoint_layout import lay_out, stacked_shapes
from t5x_like.training.checkpoints import Checkpoints
from t5x_like.training.step import Frozen

MODEL, OBJECTIVE, PARAMS = "model/", "objective/", "params/"
VOCAB = "vocab"


def restore(
    path: str,
    state: Any,
    frozen: Frozen,
    config: ModelConfig,
    partitioner: partitioning.Partitioner,
    mapping: Sequence[tuple[str, str]] = (),
    other_names: Mapping[str, str] = types.MappingProxyType({}),
    new_tokens: int = 0,
) -> tuple[Any, Frozen]:
    """Restores pretrained parameters. Step, optimizer and data position stay fresh.

    The heads of the objective are also restored if their names and shapes agree. A head of another shape, such as the
    classifier of another task, stays freshly initialized, and so does a parameter that `path` does not have. Both are
    logged.

    Args:
      path: a run directory, its `checkpoints` directory, one checkpoint in it (`checkpoints/400`, or `checkpoints/best`
        for the best by its evaluation), a Hugging Face directory with safetensors, or a T5X checkpoint of T5.
      state: a `TrainState` with freshly initialized parameters.
      frozen: the arrays that are not trained.
      config: the configuration of the model; a Hugging Face directory or a T5X checkpoint must agree with it.
      partitioner: the mesh and rules that place the arrays.
      mapping: (regex, replacement) pairs that convert a tensor name of this model or its heads, without the leading
        `model/` or `objective/`, to the name in the checkpoint. They are applied in order. A tensor whose name becomes
        empty stays freshly initialized.
      other_names: part of a head -> name of the same part in another head, which is read if `path` does not have the
        first; see `Objective.other_names`.
      new_tokens: number of token ids that the model has after those of `path`. Their rows in the tables over the
        vocabulary stay freshly initialized; the other rows are restored.

    Returns:
      `(state, frozen)` with the restored parameters.

    Raises:
      UserError: a tensor of the model has another shape at `path`, no tensor of the model was found, or with
        `new_tokens`, no table over the vocabulary has that many rows fewer.
    """
    params = optimizers.merge(state.params, frozen.params)
    shapes = stacked_shapes(params, partitioner)
    wanted = {name: _renamed(name, mapping) for name in shapes}
    with _open(path, config, partitioner) as (stored, read):
        wanted |= _found_elsewhere(path, wanted, stored, other_names)
        same = {name: other for name, other in wanted.items() if stored.get(other) == shapes[name].shape}
        grown = _grown_tables(path, params, wanted, stored, new_tokens)
        other_shape = [name for name in wanted if wanted[name] in stored and name not in same | grown]
        _check_shapes(path, shapes, wanted, stored, [name for name in other_shape if name.startswith(MODEL)])
        if not any(name.startswith(MODEL) for name in same):
            raise UserError(
                f"{path}: none of this model's tensors found, such as {next(iter(wanted.values()))!r}. Give a "
                "checkpoint of this model, or map the names with `initial_mapping`."
            )
        leaves = read({other: shapes[name] for name, other in same.items()})
        found = {name: leaves[other] for name, other in same.items()}
        found |= {
            name: _with_new_rows(path, name, wanted[name], axis, params, stored, read, partitioner)
            for name, axis in grown.items()
        }
    _report(path, shapes, {name: wanted[name] for name in found}, stored, other_shape)
    shardings = parameters.named_leaves(partitioner.shardings(params))
    placed = lay_out(found, {name: at for name, at in shardings.items() if parameters.stored_name(name)[0] in found})
    merged = parameters.map_named(lambda name, leaf: placed.get(name, leaf), params)
    return state.replace(params=_select(state.params, merged)), frozen.replace(params=_select(frozen.params, merged))


def load_params(
    path: str, config: ModelConfig, objective: Objective, partitioner: partitioning.Partitioner
) -> dict[str, Any]:
    """Loads all parameters of a model and of the heads of an objective.

    Args:
      path: as in `restore`.
      config: the configuration of the model, resolved by `partitioning.for_platform`.
      objective: the objective that owns the heads.
      partitioner: the mesh and rules that place the arrays.

    Returns:
      `{"model": …, "objective": …}`.

    Raises:
      UserError: a tensor is missing at `path` or has another shape there.
    """
    model = partitioner.eval_shape(config.make, jax.random.key(0))
    heads = partitioner.eval_shape(objective.init, jax.random.key(0), model)
    return load(path, {"model": model, "objective": heads}, config, partitioner)


def load_model(path: str, config: ModelConfig, partitioner: partitioning.Partitioner) -> Any:
    """Loads all parameters of a model.

    Args:
      path: as in `restore`.
      config: the configuration of the model, resolved by `partitioning.for_platform`.
      partitioner: the mesh and rules that place the arrays.

    Returns:
      The model.

    Raises:
      UserError: a tensor is missing at `path` or has another shape there.
    """
    return load(path, {"model": partitioner.eval_shape(config.make, jax.random.key(0))}, config, partitioner)["model"]


def load(
    path: str, like: Mapping[str, Any], config: ModelConfig, partitioner: partitioning.Partitioner
) -> dict[str, Any]:
    """Loads all parameters of a tree, in its dtypes.

    Args:
      path: as in `restore`.
      like: shapes, `{"model": …}`, optionally with `"objective"`.
      config: the configuration of the model, resolved by `partitioning.for_platform`.
      partitioner: the mesh and rules that place the arrays.

    Returns:
      A tree of the structure of `like`.

    Raises:
      UserError: a tensor is missing at `path` or has another shape there.
    """
    shapes = stacked_shapes(like, partitioner)
    with _open(path, config, partitioner) as (stored, read):
        for root in like:
            own = [name for name in shapes if name.startswith(f"{root}/")]
            if missing := sorted(set(own) - set(stored)):
                raise UserError(
                    f"{path}: {len(missing)} of the {len(own)} tensors of this {root} not found, such as "
                    f"{missing[0]!r}. Give a checkpoint of this {root}"
                )
        other_shape = [name for name in shapes if stored[name] != shapes[name].shape]
        _check_shapes(path, shapes, dict(zip(shapes, shapes, strict=True)), stored, other_shape)
        leaves = read(shapes)
    return parameters.rebuild(like, lay_out(leaves, parameters.named_leaves(partitioner.shardings(like))))


def _select(like: Any, params: Any) -> Any:
    leaves = parameters.named_leaves(params)
    return parameters.rebuild(like, {name: leaves[name] for name in parameters.named_leaves(like)})


def _renamed(name: str, mapping: Sequence[tuple[str, str]]) -> str:
    root, _, name = name.partition("/")
    for pattern, replacement in mapping:
        name = re.sub(pattern, replacement, name)
    return f"{root}/{name}"


def _found_elsewhere(path, wanted, stored, other_names: Mapping[str, str]) -> dict[str, str]:
    """Returns the parameters of heads that `path` has only under other names -> these names."""
    found = {}
    for name, stored_name in wanted.items():
        for part, other in other_names.items():
            candidate = stored_name.replace(f"{OBJECTIVE}{part}/", f"{OBJECTIVE}{other}/", 1)
            if stored_name not in stored and candidate != stored_name and candidate in stored:
                logging.info("%s: %s is read from %s", path, name, candidate)
                found[name] = candidate
    return found


def _grown_tables(path, params, wanted, stored, new_tokens: int) -> dict[str, int]:
    """Returns the tables over the vocabulary that lack only the rows of new tokens at `path` -> axis of the rows."""
    if new_tokens < 0:
        raise UserError(f"INITIAL_NEW_TOKENS={new_tokens} is negative. Give the number of new token ids.")
    if not new_tokens:
        return {}
    leaves, found = parameters.named_leaves(params), {}
    for name, axes in parameters.logical_axes(params).items():
        if VOCAB in axes and name in wanted:
            axis = axes.index(VOCAB)
            shape = list(leaves[name].shape)
            shape[axis] -= new_tokens
            if stored.get(wanted[name]) == tuple(shape):
                found[name] = axis
    if not found:
        raise UserError(
            f"INITIAL_NEW_TOKENS={new_tokens}: no table over the vocabulary at {path} has {new_tokens} rows fewer than "
            "this model. Increase the vocab_size of the model by the number of new tokens."
        )
    return found


def _with_new_rows(path, name, stored_name, axis, params, stored, read, partitioner) -> jax.Array:
    """Returns a table with the rows at `path`, followed by the freshly initialized rows of new tokens."""
    fresh, shape = parameters.named_leaves(params)[name], stored[stored_name]
    # The mesh may not divide the stored rows.
    like = jax.ShapeDtypeStruct(shape, fresh.dtype, sharding=partitioner.replicated)
    logging.info(
        "%s: %s has %d rows; the %d rows of new tokens are freshly initialized",
        *(path, stored_name, shape[axis], fresh.shape[axis] - shape[axis]),
    )

    def join(rows, fresh):
        new = jax.lax.slice_in_dim(fresh, shape[axis], fresh.shape[axis], axis=axis)
        return jax.numpy.concatenate([rows, new], axis=axis)

    sharding = parameters.named_leaves(partitioner.shardings(params))[name]
    rows = read({stored_name: like})[stored_name]
    return jax.jit(join, out_shardings=sharding)(rows, jax.device_put(fresh, sharding))


@contextlib.contextmanager
def _open(
    path: str, config: ModelConfig, partitioner: partitioning.Partitioner
) -> Iterator[tuple[dict[str, tuple[int, ...]], Callable]]:
    """Yields the shapes of the parameters at `path` by stored name, and a function that reads the wanted ones."""
    if weight_files.is_huggingface(path):
        leaves = interop.read(path, config)
    elif (index := weight_files.find_t5x(path)) is not None:
        leaves = t5x.read(index, config)
    else:
        leaves = None
    if leaves is not None:
        yield (
            {name: leaf.shape for name, leaf in leaves.items()},
            lambda wanted: {name: _put(leaves[name], shape) for name, shape in wanted.items()},
        )
        return
    directory, step = checkpoint_choice.locate(path)
    reader = Checkpoints(directory, read_only=True)
    try:
        step = reader.latest() if step is None else step
        if step is None:
            raise UserError(weight_files.explain_missing(path))
        yield (
            _below(PARAMS, reader.shapes(step)),
            lambda wanted: _below(PARAMS, reader.read(step, {PARAMS + name: shape for name, shape in wanted.items()})),
        )
    finally:
        reader.close()


def _put(leaf: np.ndarray, shape: jax.ShapeDtypeStruct) -> jax.Array:
    return jax.make_array_from_callback(
        shape.shape, shape.sharding, lambda index: np.asarray(leaf[index], shape.dtype), dtype=shape.dtype
    )


def _below(prefix: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}


def _check_shapes(path, shapes, wanted, stored, other_shape):
    for name in other_shape:
        raise UserError(
            f"{path}: {wanted[name]} has shape {stored[wanted[name]]}, but {name} of this model has shape "
            f"{shapes[name].shape}. Give a checkpoint of this model, or change the configuration."
        )


def _report(path, shapes, present, stored, other_shape):
    for name in other_shape:
        logging.warning(
            "%s: %s is freshly initialized, because the stored shape differs from %s", path, name, shapes[name].shape
        )
    logging.info("%s: restored %d tensors", path, len(present))
    for label, names in (
        ("freshly initialized", set(shapes) - set(present)),
        ("ignored", set(stored) - set(present.values())),
    ):
        if names:
            logging.info("%s: %s %d tensors: %s", path, label, len(names), ", ".join(sorted(names)))
