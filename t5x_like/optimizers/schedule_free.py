"""Schedule-free AdamW (Defazio et al. 2024, arXiv:2405.15682): averages in place of a decay of the learning rate."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.optimizers.base import Optimizer, as_schedule, check_rates
from t5x_like.optimizers.groups import ParameterGroup, is_vector, trainable_leaves
from t5x_like.optimizers.schedules import Schedule
from t5x_like.parameters import Tree
from t5x_like.recorded import recorded


class State(NamedTuple):
    """State of `schedule_free_adamw`.

    Attributes:
      count: Number of updates.
      largest: Largest learning rate so far.
      weights: Sum of the weights of the average.
      nu: Parameter -> its second moment.
      z: Parameter -> its value after the steps of Adam, without averages.
    """

    count: nnx.Variable
    largest: nnx.Variable
    weights: nnx.Variable
    nu: dict[str, nnx.Variable]
    z: dict[str, nnx.Variable]


@recorded
def schedule_free_adamw(
    *,
    learning_rate: float | Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decay_vectors: bool = False,
    weight_power: float = 2.0,
    groups: Sequence[ParameterGroup] = (),
) -> Optimizer:
    """Creates schedule-free AdamW. A run evaluates and exports the averages x, which checkpoints have beside the rest.

    Gradients are computed at the parameters y = (1 - b1) z + b1 x. An update of step t moves z by Adam's direction
    g / (√v + eps) + weight_decay · y, then x by the weight cₜ = wₜ / Σ wᵢ towards z, with wₜ the largest learning rate
    so far to the power `weight_power`.

    Args:
      learning_rate: A number or a schedule with warmup and without decay, such as `schedules.constant`.
      b1: Share of the average in y, in place of the decay rate of a first moment.
      b2: Decay rate of the second moment.
      eps: Added to the root of the bias-corrected second moment.
      weight_decay: The weight decay, at y; it is multiplied by the learning rate.
      decay_vectors: Whether vectors (scales of norms, biases) decay as well.
      weight_power: Power of the learning rate in the weights of the average.
      groups: Parameter groups; the first one that matches a parameter applies.

    Returns:
      The optimizer, with `averages`.

    Raises:
      UserError: `b1` is not between 0 and 1, `b2` is not in [0, 1), or `weight_decay` is negative.
    """
    check_rates("schedule_free_adamw", weight_decay=weight_decay, b2=b2)
    if not 0 < b1 < 1:
        raise UserError(f"b1={b1} of schedule_free_adamw is not between 0 and 1. Give such as 0.9.")
    schedule, groups = as_schedule(learning_rate), tuple(groups)

    def init(params):
        arrays, known = parameters.named_leaves(params), trainable_leaves(params, groups)

        def variables(make):
            return {name: nnx.Variable(make(arrays[name]), axes=leaf.axes) for name, leaf in known.items()}

        def scalar(dtype):
            return nnx.Variable(jnp.zeros((), dtype), axes=())

        zeros = variables(lambda array: jnp.zeros(array.shape))
        start = variables(lambda array: jnp.array(array, jnp.float32, copy=True))
        return State(scalar(jnp.int32), scalar(jnp.float32), scalar(jnp.float32), zeros, start)

    def update(gradients, state, params, *, step):
        known, arrays = trainable_leaves(params, groups), parameters.named_leaves(params)
        named, nus, zs = (parameters.named_leaves(tree) for tree in (gradients, state.nu, state.z))
        count, rate = state.count[...] + 1, schedule(step)
        largest = jnp.maximum(state.largest[...], rate)
        weight = largest**weight_power
        weights = state.weights[...] + weight
        share = jnp.where(weights > 0, weight / jnp.where(weights > 0, weights, 1.0), 0.0)
        correction = 1 - b2 ** count.astype(jnp.float32)
        updates, nu, z = {}, {}, {}
        for name, leaf in known.items():
            gradient, y = named[name].astype(jnp.float32), arrays[name].astype(jnp.float32)
            nu[name] = b2 * nus[name] + (1 - b2) * gradient**2
            direction = gradient / (jnp.sqrt(nu[name] / correction) + eps)
            if decay_vectors or not is_vector(leaf):
                direction += weight_decay * leaf.broadcast_factor("weight_decay_factor", step) * y
            updated = leaf.broadcast_factor("update_factor", step)
            moved = rate * leaf.broadcast_factor("learning_rate_factor", step) * updated * direction
            # y moves towards z as x does, and with z by what z moves, of which x takes its share.
            movement = share * (zs[name] - y) - (1 - b1 * (1 - share)) * moved
            updates[name] = jnp.where(jnp.asarray(updated) == 0, 0.0, movement)  # a factor of 0 keeps the value
            z[name] = zs[name] - moved
        new_state = parameters.rebuild(state, parameters.named_leaves(State(count, largest, weights, nu, z)))
        return parameters.rebuild(gradients, updates), new_state

    def averages(params: Tree, state: State) -> Tree:
        zs = parameters.named_leaves(state.z)
        named = parameters.named_leaves(params)
        found = {name: (named[name] - (1 - b1) * z) / b1 for name, z in zs.items()}
        return parameters.rebuild(params, named | {name: x.astype(named[name].dtype) for name, x in found.items()})

    return Optimizer(init, update, schedule, groups, averages=averages)
