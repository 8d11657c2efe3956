"""The interface of optimizers, and gradient clipping."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.optimizers.groups import ParameterGroup, trainable_leaves
from t5x_like.optimizers.schedule_checks import check_learning_rate
from t5x_like.optimizers.schedules import Schedule
from t5x_like.parameters import Tree


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Pure functions on parameter trees, similar to an optax transformation whose update also gets the step.

    Attributes:
      init: `init(params) -> state`. Each array of the state is an `nnx.Variable` with `axes`. Its name ends with the
        name of its parameter, so that `parameters` shards, stacks and unstacks it like the parameter.
      update: `update(gradients, state, params, *, step) -> (updates, state)`. The first update has step 0. The float32
        updates are applied by `optax.apply_updates(params, updates)`.
      learning_rate: The schedule. The update of `step` applies `learning_rate(step)` times the factor of a parameter's
        group.
      groups: The parameter groups. Frozen parameters must be removed by `split` first.
      averages: `averages(params, state) -> averages`, the parameters that a run evaluates and exports in place of those
        that it trains, after an update; None if they are the same.
    """

    init: Callable[[Tree], Any]
    update: Callable[..., tuple[Tree, Any]]
    learning_rate: Schedule
    groups: tuple[ParameterGroup, ...] = ()
    averages: Callable[[Tree, Any], Tree] | None = None


def as_schedule(learning_rate: float | Schedule) -> Schedule:
    """Returns a schedule unchanged, and a number as a constant schedule.

    Raises:
      UserError: The number is negative or not finite.
    """
    if callable(learning_rate):
        return learning_rate
    check_learning_rate(learning_rate)
    return lambda step: jnp.asarray(learning_rate, jnp.float32)


def check_rates(name: str, *, weight_decay: float = 0.0, **decay_rates: float) -> None:
    """Checks the weight decay and the decay rates of the moments of an optimizer.

    Args:
      name: Name of the optimizer.
      weight_decay: The weight decay.
      **decay_rates: Decay rates by the name of their argument.

    Raises:
      UserError: `weight_decay` is negative, or a decay rate is not in [0, 1).
    """
    if not weight_decay >= 0:
        raise UserError(f"weight_decay={weight_decay} of {name} is negative or NaN. Give a positive number, or 0.")
    for argument, rate in decay_rates.items():
        if not 0 <= rate < 1:
            raise UserError(f"{argument}={rate} of {name} is not in [0, 1). Give a decay rate such as 0.9.")


def global_norm(tree: Tree) -> Float[Array, ""]:
    """Computes the Euclidean norm of all leaves together in float32; 0 for a tree without leaves."""
    return jnp.asarray(optax.tree.norm(optax.tree.cast(tree, jnp.float32)), jnp.float32)


def clip_by_global_norm(gradients: Tree, max_norm: float) -> Tree:
    """Scales `gradients` so that their global norm is at most `max_norm` (Pascanu et al., 2013, section 3.2).

    Args:
      gradients: The gradients; each keeps its dtype.
      max_norm: The largest norm that is not scaled; positive.

    Returns:
      The scaled gradients. If the norm before scaling is not finite, they are NaN or zero.

    Raises:
      UserError: `max_norm` is not positive.
    """
    if not max_norm > 0:
        raise UserError(f"MAX_GRAD_NORM={max_norm} is not positive. Give a positive number, or None for no clipping.")
    clip = optax.clip_by_global_norm(max_norm)
    clipped, _ = clip.update(optax.tree.cast(gradients, jnp.float32), clip.init(gradients))
    return optax.tree.cast_like(clipped, gradients)


def clip_groups(gradients: Tree, params: Tree, max_norm: float, groups: Sequence[ParameterGroup]) -> Tree:
    """Scales the gradients of parameter groups with `clip` so that their global norm is at most `max_norm`.

    Args:
      gradients: The gradients.
      params: The trainable parameters.
      max_norm: See `clip_by_global_norm`.
      groups: The parameter groups; the first one that matches a parameter applies.

    Returns:
      The gradients; those of groups without `clip` as they are.

    Raises:
      UserError: See `clip_by_global_norm` and `groups.trainable_leaves`.
      ValueError: See `groups.trainable_leaves`.
    """
    known, named = trainable_leaves(params, groups), parameters.named_leaves(gradients)
    clipped = clip_by_global_norm({name: named[name] for name, leaf in known.items() if leaf.group.clip}, max_norm)
    return parameters.rebuild(gradients, named | clipped)
