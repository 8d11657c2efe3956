"""Starting from somebody else's parameters: INITIAL_CHECKPOINT_PATH."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import logging
from etils import epath

from t5x_like import interop, optimizers, parameters
from t5x_like.checkpoints import Checkpoints
from t5x_like.errors import UserError


def restore(
    path: str,
    state: Any,
    frozen: Any,
    config: Any,
    partitioner: Any,
    mapping: Sequence[tuple[str, str]] = (),
) -> tuple[Any, Any]:
    """`(state, frozen)` with the model parameters found at `path`; step, optimizer and data position stay fresh.

    Args:
      path: a run folder, its `checkpoints` folder, one step's folder in it, or a Hugging Face folder with safetensors.
      state: a `TrainState` with freshly initialised parameters.
      frozen: the frozen part of the parameters.
      config: the model's configuration, which a Hugging Face folder must agree with.
      partitioner: where the arrays go.
      mapping: (regex, replacement) pairs, applied in order to each tensor name of this model to give the
        checkpoint's; a name replaced by the empty string stays freshly initialised.

    Raises:
      UserError: a tensor is there in another shape, or nothing matches.
    """
    params = optimizers.merge(state.params, frozen)
    fresh = parameters.stack(parameters.named_leaves(params["model"]))
    wanted = {name: _renamed(name, mapping) for name in fresh}
    found = _read(path, fresh, wanted, "model", config, partitioner)
    if not found:
        raise UserError(f"{path} holds none of this model's tensors, such as {next(iter(wanted.values()))!r}")
    _report(path, fresh, found)
    model = partitioner.jit(
        lambda leaves: parameters.unstack(leaves, params["model"]), out_shardings=partitioner.shardings(params["model"])
    )(fresh | found)
    merged = params | {"model": model}
    trainable = _select(state.params, merged)
    return state.replace(params=trainable), _select(frozen, merged)


def load_params(path: str, config: Any, objective: Any, partitioner: Any) -> dict[str, Any]:
    """The parameters stored at `path`, `{"model": …, "objective": …}`, every tensor of them.

    Args:
      path, config, partitioner: as in `load_model`.
      objective: whose heads are read too.

    Raises:
      UserError: a tensor is missing there, or has another shape.
    """
    network = load_model(path, config, partitioner)
    like = partitioner.trace(objective.init, jax.random.key(0), network)
    return {"model": network, "objective": _load(path, like, "objective", config, partitioner)}


def load_model(path: str, config: Any, partitioner: Any) -> Any:
    """The model stored at `path`, every tensor of it.

    Args:
      path: as in `restore`.
      config: the model's configuration with nothing left open (see `partitioning.for_platform`).
      partitioner: where the arrays go.

    Raises:
      UserError: a tensor is missing there, or has another shape.
    """
    return _load(path, partitioner.trace(config.make, jax.random.key(0)), "model", config, partitioner)


def _load(path, like, root, config, partitioner):
    fresh = parameters.stack(parameters.named_leaves(like))
    found = _read(path, fresh, {name: name for name in fresh}, root, config, partitioner) if fresh else {}
    if missing := sorted(set(fresh) - set(found)):
        raise UserError(
            f"{path} lacks {len(missing)} of the {len(fresh)} tensors of this {root}, such as {missing[0]!r}"
        )
    return partitioner.jit(lambda leaves: parameters.unstack(leaves, like), out_shardings=partitioner.shardings(like))(
        found
    )


def _select(like: Any, params: Any) -> Any:
    leaves = parameters.named_leaves(params)
    return parameters.rebuild(like, {name: leaves[name] for name in parameters.named_leaves(like)})


def _renamed(name: str, mapping: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in mapping:
        name = re.sub(pattern, replacement, name)
    return name


def _read(path, fresh, wanted, root, config, partitioner) -> dict[str, Any]:
    """The tensors of `path` below `root` (`model` or `objective`) by the stacked names that they have here."""
    folder = epath.Path(path)
    if interop.is_huggingface(path):
        stored = _below(f"{root}/", interop.read(path, config))
        _check_shapes(path, fresh, wanted, {name: tuple(leaf.shape) for name, leaf in stored.items()})
        return {name: stored[other] for name, other in wanted.items() if other in stored}
    directory, step = locate(path)
    reader = Checkpoints(directory, read_only=True)
    try:
        step = reader.latest() if step is None else step
        if step is None:
            raise UserError(f"there is no complete checkpoint in {folder}")
        shapes = _below(f"params/{root}/", reader.shapes(step))
        _check_shapes(path, fresh, wanted, shapes)
        present = {name: other for name, other in wanted.items() if other in shapes}
        like = {other: jax.ShapeDtypeStruct(fresh[name].shape, fresh[name].dtype) for name, other in present.items()}
        restored = reader.restore_part(step, like, partitioner, f"params/{root}") if like else {}
        return {name: restored[other] for name, other in present.items()}
    finally:
        reader.close()


def _below(prefix: str, leaves: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}


def _check_shapes(path, fresh, wanted, shapes):
    for name, other in wanted.items():
        if other in shapes and shapes[other] != tuple(fresh[name].shape):
            raise UserError(
                f"{path}: {other} has shape {shapes[other]}, this model's {name} has {tuple(fresh[name].shape)}"
            )


def locate(path: str) -> tuple[str, int | None]:
    """The checkpoints folder that `path` means, and the step where it names one.

    `path` is a run folder, its `checkpoints` folder, or one step's folder in that.
    """
    folder = path.rstrip("/")
    parent, _, last = folder.rpartition("/")
    if last.isdigit() and parent.endswith("checkpoints"):
        return parent, int(last)
    if last == "checkpoints":
        return folder, None
    return f"{folder}/checkpoints", None


def _report(path, fresh, found):
    initialised = sorted(set(fresh) - set(found))
    logging.info("%s: restored %d tensors: %s", path, len(found), ", ".join(sorted(found)))
    logging.info("%s: freshly initialised %d tensors: %s", path, len(initialised), ", ".join(initialised) or "none")
