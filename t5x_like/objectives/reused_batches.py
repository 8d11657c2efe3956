"""Batches that several updates in a row read, with what an objective adds to them once, such as samples of the model.

The state of a run keeps what is added, so that a run that stops between these updates resumes exactly.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t5x_like.axis_rules import CARRY, SHARED
from t5x_like.objectives.base import Batch, Objective, Params
from t5x_like.objectives.prediction import Scalar

# Array `[1]` of a batch that several updates read: 1 in the first of them, and otherwise 0.
FIRST_USE = f"{SHARED}first_use"


def initial(objective: Objective, params: Params, batch: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Array]:
    """Returns zeros for what an objective adds to a batch for several updates; nothing if each update has its own.

    Args:
      objective: The objective.
      params: The parameters, or their shapes.
      batch: The shapes of the features of a global batch.
    """
    if objective.updates_per_batch == 1:
        return {}
    prepared = jax.eval_shape(
        lambda params, batch: objective.prepare(params, batch, key=jax.random.key(0), step=0), params, dict(batch)
    )
    return {name: jnp.zeros(x.shape, x.dtype) for name, x in prepared.items() if name not in batch}


def prepare(
    objective: Objective, params: Params, batch: Batch, kept: Batch, *, key: jax.Array, step: Scalar | int
) -> Batch:
    """Returns a batch as an objective prepares it, or as it was prepared for an earlier update.

    Args:
      objective: The objective.
      params: The parameters.
      batch: The global batch, the same for `updates_per_batch` steps.
      kept: What was added to it; the shapes are those of `initial`.
      key: Random key of the step.
      step: Number of the step from 0.
    """
    if objective.prepare is None:
        return batch
    if objective.updates_per_batch == 1:
        return objective.prepare(params, batch, key=key, step=step)
    is_first = step % objective.updates_per_batch == 0

    def add():
        prepared = objective.prepare(params, batch, key=key, step=step)
        return {name: prepared[name] for name in kept}

    added = jax.lax.cond(is_first, add, lambda: dict(kept))
    return {**batch, **added, FIRST_USE: is_first[None].astype(jnp.float32)}


def kept_of(carry: Mapping[str, Any]) -> dict[str, Array]:
    """Returns what is kept for several updates among the arrays that a state carries from batch to batch."""
    return {name: x[...] for name, x in carry.items() if not name.startswith(CARRY)}
