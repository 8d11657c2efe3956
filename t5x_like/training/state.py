"""What a training step updates and reads: its state, and the arrays that are not trained."""

import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct
from jaxtyping import Array, Int, UInt32

from t5x_like import optimizers
from t5x_like.training.stages import RunStage, init_optimizers


@struct.dataclass
class TrainState:
    """The state that a training step updates and a checkpoint stores.

    Attributes:
      step: Number of batches consumed so far.
      params: The trainable parameters, `{"model": …, "objective": …}`.
      opt_state: The optimizer's state; with several stages, stage -> state of its optimizer.
      rng: Raw data of the run's random key; the key of a step is `fold_in(rng, step)`.
      skipped: Number of updates skipped because the loss or the gradient was not finite.
      skipped_in_a_row: How many of them came immediately before this step.
      carry: What networks carry from batch to batch, as features of a batch (`objectives.carry`), with their axes.
    """

    step: Int[Array, ""]
    params: Any
    opt_state: Any
    rng: UInt32[Array, " words"]
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    carry: dict[str, nnx.Param] = struct.field(default_factory=dict)


@struct.dataclass
class Frozen:
    """The arrays of a run that are not trained. They are arguments of the step, without gradient or optimizer state.

    Attributes:
      params: The frozen parameters of the run, with None in place of the trainable ones; a checkpoint stores them.
      teachers: Teacher -> its parameters, `{"model": …, "objective": …}`; never stored.
    """

    params: Any
    teachers: Mapping[str, Any] = struct.field(default_factory=dict)


def assemble(params: Any, frozen: Frozen) -> dict[str, Any]:
    """Returns what an objective reads.

    Args:
      params: The trainable parameters.
      frozen: The other arrays.

    Returns:
      `{"model": …, "objective": …}`, and `"teachers"` if there are any.
    """
    merged = optimizers.merge(params, frozen.params)
    return {**merged, "teachers": frozen.teachers} if frozen.teachers else merged


def create_state(
    params: Any, stages: Mapping[str, RunStage], seed: int, carry: Mapping[str, Array] = types.MappingProxyType({})
) -> TrainState:
    """Creates the state before the first update.

    Args:
      params: The trainable parameters.
      stages: The stages of a step, whose optimizers initialize their own states; see `stages.of_objective`.
      seed: Seed of dropout.
      carry: What networks carry into the first batch, as features of a batch.

    Raises:
      UserError: A stage trains no parameter, or no stage trains a parameter.
    """

    def zero():  # a separate array for each field, because a buffer can be donated only once
        return jnp.zeros((), jnp.int32)

    return TrainState(
        step=zero(),
        params=params,
        opt_state=init_optimizers(params, stages),
        rng=jax.random.key_data(jax.random.key(seed)),
        skipped=zero(),
        skipped_in_a_row=zero(),
        carry={name: nnx.Param(x, axes=("batch", *[None] * (x.ndim - 1))) for name, x in carry.items()},
    )
