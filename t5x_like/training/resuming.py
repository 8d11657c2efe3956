"""The state of a run in its checkpoints: trainable and frozen parameters together, except for its frozen base."""

import dataclasses
import os

from absl import logging

from t5x_like import optimizers, parameters, partitioning
from t5x_like.checkpoints.checkpoint_layout import lay_out, stacked_shapes
from t5x_like.checkpoints.checkpointer import Checkpointer
from t5x_like.checkpoints.tiered_checkpoints import TieredCheckpoints
from t5x_like.errors import UserError
from t5x_like.objectives.variables import Frozen
from t5x_like.stored import frozen_base, weight_source
from t5x_like.stored.frozen_base import FrozenBase
from t5x_like.training.recipe import Storage
from t5x_like.training.state import TrainState

StateAndFrozen = tuple[TrainState, Frozen]


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a run resumes from.

    Attributes:
      state: The state.
      frozen: The frozen parameters.
      base: The frozen parameters that the checkpoint lacks; None if it lacks none.
    """

    state: TrainState
    frozen: Frozen
    base: FrozenBase | None


def open_checkpoints(storage: Storage, model_dir: str) -> Checkpointer:
    """Opens the checkpoints of a run directory, and those on this host if the run has any."""
    persistent = storage.checkpoints(os.path.join(model_dir, "checkpoints"))
    return persistent if storage.local is None else TieredCheckpoints(persistent, storage.local, model_dir)


def saved(state: TrainState, frozen: Frozen, base: FrozenBase | None) -> TrainState:
    """Returns what a checkpoint stores.

    Args:
      state: The state, or its shapes.
      frozen: The arrays that are not trained, or their shapes.
      base: The frozen parameters that it does not store.
    """
    stored, _ = frozen_base.split(base, frozen.params)
    return state.replace(params=optimizers.merge(state.params, stored))


def restore(
    checkpointer: Checkpointer,
    saved_step: int,
    shapes: StateAndFrozen,
    optimizer: optimizers.Optimizer,
    partitioner: partitioning.Partitioner,
    base: FrozenBase | None = None,
) -> Restored:
    """Restores the state and the frozen parameters into their shards.

    Args:
      checkpointer: The checkpoints.
      saved_step: The step to restore.
      shapes: The shapes of `(state, frozen)`.
      optimizer: Its parameter groups say which parameters are frozen.
      partitioner: The mesh and its rules.
      base: Where the parameters are that the checkpoint lacks.

    Returns:
      The `Restored`.

    Raises:
      UserError: The base is missing or has changed, the checkpoint has no averages, or only it is quantized.
    """
    names = checkpointer.shapes(saved_step, verify=False)
    stored = weight_source.strip_prefix(weight_source.PARAMS, names)
    base = base.without(stored) if base is not None else None
    state, frozen = shapes
    if state.average is not None and not weight_source.strip_prefix(weight_source.AVERAGE, names):
        raise UserError(
            f"EMA_DECAY: checkpoint {saved_step} has no averages, because the run had none. Resume without EMA_DECAY, "
            "or start a new run from this one with INITIAL_CHECKPOINT_PATH."
        )
    wanted = stacked_shapes(optimizers.merge(state.params, frozen.params), partitioner)
    if lost := sorted(name for name in stored if f"/{parameters.QUANTIZATION}/" in name and name not in wanted):
        raise UserError(
            f"checkpoint {saved_step} is of a quantized run, with {lost[0]!r}, but the model is not quantized. Resume "
            "with the gin files of the run, such as compression/int8.gin, or start a new run from it with "
            "INITIAL_CHECKPOINT_PATH and INITIAL_DROPPED=('/quantization/range$',)."
        )
    own, of_base = frozen_base.split(base, optimizers.merge(state.params, frozen.params))
    restored = checkpointer.restore(saved_step, state.replace(params=own), partitioner)
    params = restored.params
    if base is not None:
        logging.info("reading the frozen parameters of %s", base.path)
        leaves = weight_source.read_base(base, stacked_shapes(of_base, partitioner))
        placed = lay_out(leaves, parameters.named_leaves(partitioner.shardings(of_base)))
        params = optimizers.merge(params, parameters.rebuild(of_base, placed))
    trainable, frozen = optimizers.split(params, optimizer.groups)
    logging.info("restored step %d", saved_step)
    trained = {parameters.stored_name(name)[0] for name in parameters.named_leaves(trainable)}
    return Restored(restored.replace(params=trainable), Frozen(frozen), base and base.without(trained))
