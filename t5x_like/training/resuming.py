"""The state of a run in its checkpoints: trainable and frozen parameters together."""

import os

from absl import logging

from t5x_like import optimizers, partitioning
from t5x_like.training.checkpoints.checkpointer import Checkpointer
from t5x_like.training.checkpoints.tiered_checkpoints import TieredCheckpoints
from t5x_like.training.recipe import Storage
from t5x_like.training.state import Frozen, TrainState

StateAndFrozen = tuple[TrainState, Frozen]


def open_checkpoints(storage: Storage, model_dir: str) -> Checkpointer:
    """Opens the checkpoints of a run directory, and those on this host if the run has any."""
    persistent = storage.checkpoints(os.path.join(model_dir, "checkpoints"))
    return persistent if storage.local is None else TieredCheckpoints(persistent, storage.local, model_dir)


def saved_shapes(shapes: StateAndFrozen) -> TrainState:
    """Returns the shapes of what a checkpoint stores.

    Args:
      shapes: The shapes of `(state, frozen)`.
    """
    state, frozen = shapes
    return state.replace(params=optimizers.merge(state.params, frozen.params))


def restore(
    checkpointer: Checkpointer,
    saved_step: int,
    shapes: StateAndFrozen,
    optimizer: optimizers.Optimizer,
    partitioner: partitioning.Partitioner,
) -> StateAndFrozen:
    """Restores the state and the frozen parameters into their shards.

    Args:
      checkpointer: The checkpoints.
      saved_step: The step to restore.
      shapes: The shapes of `(state, frozen)`.
      optimizer: Its parameter groups say which parameters are frozen.
      partitioner: The mesh and its rules.

    Returns:
      `(state, frozen)`.
    """
    restored = checkpointer.restore(saved_step, saved_shapes(shapes), partitioner)
    trainable, frozen = optimizers.split(restored.params, optimizer.groups)
    logging.info("restored step %d", saved_step)
    return restored.replace(params=trainable), Frozen(frozen)
