"""What every optimizer is to the step, and the norm of a gradient."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.optimizers.groups import ParameterGroup
from t5x_like.optimizers.schedules import Schedule
from t5x_like.parameters import Tree


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A pair of pure functions on trees of parameters, in the manner of optax, that is told the step.

    Attributes:
      init: `init(params) -> state`. Each array of the state is an `nnx.Variable` with `axes`, under a name that ends in
        its parameter's, so that `parameters.py` shards, stacks and unstacks it like the parameter.
      update: `update(gradients, state, params, *, step) -> (updates, state)`; `step` is 0 for the first update, and
        `optax.apply_updates(params, updates)` applies the float32 updates.
      learning_rate: the schedule; the learning rate applied by the update of `step` is `learning_rate(step)`, times the
        factor of a parameter's group.
      groups: the parameter groups; those which freeze are for `split` to take out beforehand.
    """

    init: Callable[[Tree], Any]
    update: Callable[..., tuple[Tree, Any]]
    learning_rate: Schedule
    groups: tuple[ParameterGroup, ...] = ()


def as_schedule(learning_rate: float | Schedule) -> Schedule:
    """A schedule as it is; a number as a schedule that is constant."""
    return learning_rate if callable(learning_rate) else lambda step: jnp.asarray(learning_rate, jnp.float32)


def global_norm(tree: Tree) -> Float[Array, ""]:
    """The Euclidean norm of all leaves taken together, accumulated in float32; 0 for a tree without leaves."""
    squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares, start=jnp.zeros((), jnp.float32)))


def clip_by_global_norm(gradients: Tree, max_norm: float) -> tuple[Tree, Float[Array, ""]]:
    """Scales `gradients` so that their global norm is at most `max_norm` (Pascanu et al., 2013, section 3.2).

    Args:
      gradients: the gradients; each keeps its dtype.
      max_norm: the largest norm let through; positive.

    Returns:
      The scaled gradients, and the norm before scaling. A norm that is not finite makes the gradients NaN or zero: look
      at it before using them.
    """
    if not max_norm > 0:
        raise UserError(f"max_norm={max_norm} must be positive; to train without clipping, do not clip")
    norm = global_norm(gradients)
    scale = jnp.minimum(1.0, max_norm / norm)
    return jax.tree.map(lambda leaf: (leaf.astype(jnp.float32) * scale).astype(leaf.dtype), gradients), norm
