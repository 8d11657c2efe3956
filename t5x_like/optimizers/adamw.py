"""AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), computed by optax."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from t5x_like import parameters
from t5x_like.optimizers.base import Optimizer, as_schedule, check_rates
from t5x_like.optimizers.groups import ParameterGroup, is_vector, trainable_leaves
from t5x_like.optimizers.schedules import Schedule
from t5x_like.recorded import recorded


@recorded
def adamw(
    *,
    learning_rate: float | Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    decay_vectors: bool = False,
    bias_correction: bool = True,
    groups: Sequence[ParameterGroup] = (),
) -> Optimizer:
    """Creates Adam with decoupled weight decay.

    The update is `-learning_rate * (m / (sqrt(v) + eps) + weight_decay * param)` with moments m and v, which
    are bias-corrected by default.

    Args:
      learning_rate: The schedule, or a number.
      b1: Decay rate of the first moment.
      b2: Decay rate of the second moment.
      eps: Added to the root of the second moment.
      weight_decay: The weight decay; it is multiplied by the learning rate.
      decay_vectors: Whether vectors (scales of norms, biases) decay as well. `heads` and `kv` count as one dimension.
      bias_correction: Whether m and v are divided by 1 - b1^t and 1 - b2^t in step t. The released code of BERT,
        ELECTRA and DeBERTa omits the correction.
      groups: Parameter groups; the first one that matches a parameter applies.

    Returns:
      The optimizer. Its state is optax's `ScaleByAdamState`, with moments by parameter name.

    Raises:
      UserError: `weight_decay` is negative, or `b1` or `b2` is not in [0, 1).
    """
    check_rates("adamw", weight_decay=weight_decay, b1=b1, b2=b2)
    schedule = as_schedule(learning_rate)
    groups = tuple(groups)
    adam = optax.scale_by_adam(b1=b1, b2=b2, eps=eps) if bias_correction else scale_by_raw_moments(b1, b2, eps)

    def init(params):
        arrays = parameters.named_leaves(params)
        known = trainable_leaves(params, groups)

        def zeros():
            return {name: nnx.Variable(jnp.zeros(arrays[name].shape), axes=leaf.axes) for name, leaf in known.items()}

        return optax.ScaleByAdamState(nnx.Variable(jnp.zeros((), jnp.int32), axes=()), zeros(), zeros())

    def update(gradients, state, params, *, step):
        known = trainable_leaves(params, groups)
        arrays = parameters.named_leaves(params)
        named = {name: leaf.astype(jnp.float32) for name, leaf in parameters.named_leaves(gradients).items()}
        plain = optax.ScaleByAdamState(
            state.count.get_value(), parameters.named_leaves(state.mu), parameters.named_leaves(state.nu)
        )
        directions, plain = adam.update(named, plain)
        rate = schedule(step)
        updates = {}
        for name, direction in directions.items():
            leaf = known[name]
            if decay_vectors or not is_vector(leaf):
                decay = weight_decay * leaf.broadcast_factor("weight_decay_factor", step)
                direction = direction + decay * arrays[name].astype(jnp.float32)
            factor = leaf.broadcast_factor("learning_rate_factor", step) * leaf.broadcast_factor("update_factor", step)
            updates[name] = -rate * factor * direction
        new_state = parameters.rebuild(state, parameters.named_leaves(plain))
        return parameters.rebuild(gradients, updates), new_state

    return Optimizer(init, update, schedule, groups)


def scale_by_raw_moments(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Returns Adam's direction without bias correction, which `optax.scale_by_adam` always does.

    Args:
      b1: Decay rate of the first moment.
      b2: Decay rate of the second moment.
      eps: Added to the root of the second moment.
    """

    def init(params):
        zeros = optax.tree.zeros_like(params)
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), zeros, zeros)

    def update(updates, state, params=None):
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        directions = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return directions, optax.ScaleByAdamState(state.count + 1, mu, nu)

    return optax.GradientTransformation(init, update)
