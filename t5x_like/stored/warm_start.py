"""Initializes a run from pretrained weights, given by INITIAL_CHECKPOINT_PATH."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from absl import logging

from t5x_like import optimizers, parameters, partitioning
from t5x_like.checkpoints.checkpoint_layout import lay_out, stacked_shapes
from t5x_like.errors import UserError
from t5x_like.models import networks
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Objective
from t5x_like.objectives.variables import Frozen, copy
from t5x_like.stored import network_weights, weight_fits, weight_source
from t5x_like.stored.frozen_base import BaseLeaf
from t5x_like.stored.weight_fits import Fit
from t5x_like.stored.weight_source import MODEL, OBJECTIVE, InitialWeights


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """The arrays of a run that starts from pretrained weights.

    Attributes:
      state: The state with the restored parameters.
      frozen: The frozen arrays with the restored parameters.
      exact: Stored name of a parameter that equals a tensor of the source -> the tensor.
    """

    state: Any
    frozen: Frozen
    exact: Mapping[str, BaseLeaf]


def check(
    source: InitialWeights,
    params: Mapping[str, Any],
    config: ModelConfig,
    partitioner: partitioning.Partitioner,
    objective: Objective | None = None,
) -> None:
    """Checks that pretrained weights fit a model without reading them.

    `restore` describes the other arguments and the errors.

    Args:
      source: the weights.
      params: the parameters of the run, or their shapes. Without `source.target`, the model is enough.
      config: the configuration of the model.
      partitioner: the mesh and rules.
      objective: the objective of the run; not needed without `source.target`.
    """
    for name in source.targets:
        target = _target(source, name, params, config, partitioner, objective)
        model = dataclasses.replace(target, shapes={n: s for n, s in target.shapes.items() if n.startswith(MODEL)})
        wanted = [weight_source.renamed(name, source.mapping) for name in model.shapes]
        _fits(source, model, weight_source.model_shapes(source, target.config, wanted), {})


def restore(
    source: InitialWeights,
    state: Any,
    frozen: Frozen,
    config: ModelConfig,
    partitioner: partitioning.Partitioner,
    objective: Objective,
) -> WarmStart:
    """Restores pretrained parameters. Step, optimizer and data position stay fresh.

    The heads of the objective are also restored if their names and shapes agree. A head of another shape, such as the
    classifier of another task, stays freshly initialized, and so does a parameter that the source does not have. Both
    are logged, as are the heads at the source that are not read.

    Args:
      source: the weights, and the changes that adapt them to this model.
      state: a `TrainState` with freshly initialized parameters.
      frozen: the arrays that are not trained.
      config: the configuration of the model; a Hugging Face directory or a T5X checkpoint must agree with it, or with
        that of the network `source.target`, except for the sizes that `source` changes.
      partitioner: the mesh and rules that place the arrays.
      objective: the objective of the run: its networks, and in `other_names`, part of a head -> names of the same
        part in other heads, which is read if the source does not have the first.

    Returns:
      The `WarmStart`.

    Raises:
      UserError: a tensor of the model has another shape at the source, the source has a tensor of a model that this one
        lacks, no tensor of the model was found, a network is unknown, or the changes do not fit.
    """
    exact: dict[str, BaseLeaf] = {}
    for name in source.targets:
        target = _target(source, name, optimizers.merge(state.params, frozen.params), config, partitioner, objective)
        restored = _restore(source, target, state, frozen, partitioner, objective)
        state, frozen, exact = restored.state, restored.frozen, exact | restored.exact
    return WarmStart(state, frozen, exact)


def _restore(
    source: InitialWeights,
    target: "_Target",
    state: Any,
    frozen: Frozen,
    partitioner: partitioning.Partitioner,
    objective: Objective,
) -> WarmStart:
    """Restores the parameters of one target; see `restore`."""
    params = optimizers.merge(state.params, frozen.params)
    shapes, here = target.shapes, target.names
    wanted = [weight_source.renamed(name, source.mapping) for name in shapes]
    with weight_source.open_source(source, target.config, wanted) as weights:
        fits = _fits(source, target, weights.shapes, objective.other_names)
        leaves = weights.read({fit.stored_name: shapes[name] for name, fit in fits.items() if fit.is_exact})
        found, used = {}, set()
        for name, fit in fits.items():
            if fit.is_exact:  # an update reuses the memory of each parameter
                leaf = leaves[fit.stored_name]
                found[here[name]] = copy(leaf) if fit.stored_name in used else leaf
                used.add(fit.stored_name)
        fresh = parameters.named_leaves(params)
        for name, fit in fits.items():
            if not fit.is_exact:
                own = fresh.get(here[name])
                found[here[name]] = _fitted(source, fit, weights.read, shapes[name], own, partitioner)
        exact = {
            here[name]: BaseLeaf(weights.tensors[fit.stored_name], fit.stored_shape)
            for name, fit in fits.items()
            if fit.is_exact and fit.stored_name in weights.tensors
        }
    _report(source, shapes, {name: fit.stored_name for name, fit in fits.items()}, weights.shapes)
    shardings = parameters.named_leaves(partitioner.shardings(params))
    placed = lay_out(found, {name: at for name, at in shardings.items() if parameters.stored_name(name)[0] in found})
    merged = parameters.map_named(lambda name, leaf: placed.get(name, leaf), params)
    trainable = _select(state.params, merged)
    average = None if state.average is None else copy(trainable)
    return WarmStart(
        state.replace(params=trainable, average=average),
        frozen.replace(params=_select(frozen.params, merged)),
        exact,
    )


@dataclasses.dataclass(frozen=True)
class _Target:
    """What pretrained weights are read into.

    Attributes:
      config: configuration of the network.
      shapes: name of a parameter -> its shape, with dtype and sharding. The names are those of a run whose model is the
        network, `model/…` and `objective/…`.
      names: this name -> the stored name in the run.
      axes: this name -> the logical axes.
    """

    config: ModelConfig
    shapes: Mapping[str, jax.ShapeDtypeStruct]
    names: Mapping[str, str]
    axes: Mapping[str, tuple[str | None, ...]]


def _target(
    source: InitialWeights, network: str | None, params, config: ModelConfig, partitioner, objective: Objective | None
) -> _Target:
    """Returns what starts from pretrained weights: a network of the run, or without a name the whole run.

    Raises:
      UserError: the run does not have this network, or combines one of its modules with another one.
    """
    shapes = stacked_shapes(params, partitioner)
    axes = _stacked_axes(params, {name: shape.shape for name, shape in shapes.items()})
    if network is None:
        return _Target(config, shapes, {name: name for name in shapes}, axes)
    spec = networks.find(objective, config, network, "this run")
    found = network_weights.origins(objective, config, network)
    if combined := [name for name, stored in found.items() if len(stored) > 1]:
        raise UserError(
            f"INITIAL_TARGET={network!r}: {combined[0]!r} is computed from {' and '.join(found[combined[0]])}, "
            "which no weights determine. Map the names with --gin.InitialWeights.mapping instead."
        )
    names = {name: stored for name, (stored,) in found.items()}
    return _Target(
        spec.config,
        {name: shapes[stored] for name, stored in names.items()},
        names,
        {name: axes[stored] for name, stored in names.items()},
    )


def load(
    source: InitialWeights, like: Mapping[str, Any], config: ModelConfig, partitioner: partitioning.Partitioner
) -> dict[str, Any]:
    """Loads all parameters of a tree, in its dtypes.

    Args:
      source: the weights.
      like: shapes, `{"model": …}`, optionally with `"objective"`.
      config: the configuration of the model, resolved by `models.base.for_platform`.
      partitioner: the mesh and rules that place the arrays.

    Returns:
      A tree of the structure of `like`.

    Raises:
      UserError: a tensor is missing at the source, has another shape there, or belongs to another model.
    """
    shapes, path = stacked_shapes(like, partitioner), source.path
    with weight_source.open_source(source, config, list(shapes)) as weights:
        stored = weights.shapes
        _check_quantization(path, shapes, stored)
        for root in like:
            own = [name for name in shapes if name.startswith(f"{root}/")]
            if missing := sorted(set(own) - set(stored)):
                raise UserError(
                    f"{path}: {len(missing)} of the {len(own)} tensors of this {root} not found, such as "
                    f"{missing[0]!r}. Give a checkpoint of this {root}"
                )
        for name in shapes:
            _check_shape(path, name, shapes[name].shape, name, stored[name])
        _check_unexpected(path, [name for name in stored if name.startswith(MODEL) and name not in shapes])
        leaves = weights.read(shapes)
    return parameters.rebuild(like, lay_out(leaves, parameters.named_leaves(partitioner.shardings(like))))


def _select(like: Any, params: Any) -> Any:
    leaves = parameters.named_leaves(params)
    return parameters.rebuild(like, {name: leaves[name] for name in parameters.named_leaves(like)})


def _fits(
    source: InitialWeights, target: _Target, stored, other_names: Mapping[str, tuple[str, ...]]
) -> dict[str, Fit]:
    """Returns name of a parameter of the target -> how it is made of a tensor at the source.

    Raises:
      UserError: see `restore`.
    """
    here = {name: shape.shape for name, shape in target.shapes.items()}
    _check_quantization(source.path, here, stored)
    wanted = {name: weight_source.renamed(name, source.mapping) for name in here}
    wanted |= _found_elsewhere(source.path, wanted, stored, other_names)
    fits = weight_fits.fit(source, wanted, here, target.axes, stored)
    for name, other in wanted.items():
        if name.startswith(MODEL) and name not in fits and other in stored:
            _check_shape(source.path, name, here[name], other, stored[other])
    # The tensors that `mapping` leaves out are not unexpected.
    known = {fit.stored_name for fit in fits.values()} | {name for name in wanted if name not in fits}
    unexpected = [name for name in stored if name.startswith(MODEL) and name not in known]
    _check_unexpected(source.path, [name for name in unexpected if not source.is_dropped(name)])
    if not any(name.startswith(MODEL) for name in fits):
        raise UserError(
            f"{source.path}: none of this model's tensors found, such as {next(iter(wanted.values()))!r}. Give a "
            "checkpoint of this model, or map the names with --gin.InitialWeights.mapping."
        )
    return fits


def _stacked_axes(params: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[str | None, ...]]:
    """Returns the logical axes of stacked parameters by stored name."""
    axes = {parameters.stored_name(name)[0]: found for name, found in parameters.logical_axes(params).items()}
    return {name: (parameters.LAYERS,) * (len(shapes[name]) - len(found)) + found for name, found in axes.items()}


def _found_elsewhere(path, wanted, stored, other_names: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Returns the parameters of heads that `path` has only under other names -> these names."""
    found = {}
    for name, stored_name in wanted.items():
        for part, other in ((part, other) for part, others in other_names.items() for other in others):
            candidate = stored_name.replace(f"{OBJECTIVE}{part}/", f"{OBJECTIVE}{other}/", 1)
            if stored_name not in stored and candidate != stored_name and candidate in stored:
                logging.info("%s: %s is read from %s", path, name, candidate)
                found[name] = candidate
    return found


def _fitted(source, fit: Fit, read, shape: jax.ShapeDtypeStruct, fresh, partitioner) -> jax.Array:
    """Reads a stored tensor and returns the parameter that is made of it."""
    # The mesh may not divide the stored rows. Layers are not sharded.
    sharding = shape.sharding if fit.rows is None and fit.tiles is None else partitioner.replicated
    stored = read({fit.stored_name: jax.ShapeDtypeStruct(fit.stored_shape, shape.dtype, sharding=sharding)})
    arguments = [stored[fit.stored_name]]
    if fit.rows is not None:
        rows, needed = fit.stored_shape[fit.rows], shape.shape[fit.rows]
        change = "the others are dropped" if rows > needed else "the rows of new tokens are freshly initialized"
        if fit.chosen is not None:
            change = f"they start from the rows {', '.join(map(str, fit.chosen))}"
        logging.info("%s: %s has %d rows, and this model %d; %s", source.path, fit.stored_name, rows, needed, change)
        arguments.append(jax.device_put(fresh, shape.sharding))
    return jax.jit(fit.apply, out_shardings=shape.sharding)(*arguments)


def _check_shape(path: str, name: str, shape: tuple[int, ...], stored_name: str, stored: tuple[int, ...]) -> None:
    if stored != shape:
        raise UserError(
            f"{path}: {stored_name} has shape {stored}, but {name} of this model has shape {shape}. Give a checkpoint "
            "of this model, change the configuration, or choose layers with INITIAL_LAYERS."
        )


def _check_quantization(path: str, here: Collection[str], stored: Collection[str]) -> None:
    """Checks that both the model and its source have integers, or neither."""
    ours, theirs = ({name for name in names if parameters.is_quantized_weight(name)} for names in (here, stored))
    if theirs and not ours:
        raise UserError(
            f"{path}: quantized weights, such as {sorted(theirs)[0]!r}, but the configuration of this model has none. "
            "Use the configuration in the directory of the run, add compression/int8_lora.gin to train over them, or "
            "make a dense model of them with t5x_like convert."
        )
    if ours and not theirs:
        raise UserError(
            f"{path}: weights that are not quantized, but the model needs {sorted(ours)[0]!r}. Write a quantized run "
            f"first: t5x_like convert --input={path} --output=… --quantization=int8"
        )


def _check_unexpected(path: str, names: Sequence[str]) -> None:
    if names:
        raise UserError(
            f"{path}: {len(names)} tensors of a model that this one lacks, such as {sorted(names)[0]!r}. Give a "
            "checkpoint of this model, or name the tensors to drop with INITIAL_DROPPED."
        )


def _report(source: InitialWeights, shapes, present, stored):
    for name in shapes:
        if name not in present and name in stored and stored[name] != shapes[name].shape:
            logging.warning(
                *("%s: %s is freshly initialized, because the stored shape differs from %s", source.path, name),
                shapes[name].shape,
            )
    logging.info("%s: restored %d tensors", source.path, len(present))
    for label, names in (
        ("freshly initialized", set(shapes) - set(present)),
        ("ignored", set(stored) - set(present.values())),
    ):
        if names:
            logging.info("%s: %s %d tensors: %s", source.path, label, len(names), ", ".join(sorted(names)))
