"""Adapts optax optimizers that estimate one number from all parameters, such as Prodigy."""

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
def jointly(
    transform: optax.GradientTransformation,
    *,
    learning_rate: float | Schedule = 1.0,
    weight_decay: float = 0.0,
    decay_vectors: bool = False,
    groups: Sequence[ParameterGroup] = (),
) -> Optimizer:
    """Creates an optimizer that applies an optax optimizer to all parameters together.

    The transform gets one dictionary, `{name: array}`, in which a stack of layers may be one array. Use it where sums
    over all parameters matter and others do not, as in Prodigy, and `from_optax` otherwise.

    The update is `learning_rate * (transform's update - weight_decay * param)`.

    Args:
      transform: An optax optimizer. Prodigy gets its schedule, because its estimate depends on it.
      learning_rate: Factor of the updates, a number or a schedule; 1 for Prodigy, and in its metric.
      weight_decay: Decoupled weight decay, in addition to the transform's.
      decay_vectors: Whether `weight_decay` also applies to vectors (scales of norms, biases).
      groups: Parameter groups; the first one that matches a parameter applies.

    Returns:
      The optimizer. Its state is the transform's.

    Raises:
      UserError: `weight_decay` is negative.
    """
    check_rates("jointly", weight_decay=weight_decay)
    schedule, groups = as_schedule(learning_rate), tuple(groups)
    transform = optax.with_extra_args_support(transform)

    def arrays_of(params):
        arrays = parameters.named_leaves(params)
        return {name: arrays[name].astype(jnp.float32) for name in trainable_leaves(params, groups)}

    def init(params):
        known, arrays = trainable_leaves(params, groups), arrays_of(params)

        def variable(path, array):
            names = [key.key for key in path if getattr(key, "key", None) in known]
            axes = known[names[-1]].axes if names and array.shape == arrays[names[-1]].shape else ()
            return nnx.Variable(jnp.array(array, copy=True), axes=axes or (None,) * array.ndim)

        return jax.tree_util.tree_map_with_path(variable, transform.init(arrays))

    def update(gradients, state, params, *, step):
        known, named = trainable_leaves(params, groups), parameters.named_leaves(gradients)
        given = {name: named[name].astype(jnp.float32) for name in known}
        plain = jax.tree.map(lambda x: x[...], state, is_leaf=lambda x: isinstance(x, nnx.Variable))
        params_of = arrays_of(params)
        directions, plain = transform.update(given, plain, params_of, step=step)
        updates, rate = {}, schedule(step)
        for name, leaf in known.items():
            factor = leaf.broadcast_factor("learning_rate_factor", step) * leaf.broadcast_factor("update_factor", step)
            direction = directions[name]
            if weight_decay and (decay_vectors or not is_vector(leaf)):
                direction -= weight_decay * leaf.broadcast_factor("weight_decay_factor", step) * params_of[name]
            updates[name] = rate * factor * direction
        new_state = parameters.rebuild(state, parameters.named_leaves(plain))
        return parameters.rebuild(gradients, updates), new_state

    return Optimizer(init, update, schedule, groups)
