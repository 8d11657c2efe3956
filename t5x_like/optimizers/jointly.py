"""Adapts optax optimizers that estimate one number from all parameters, such as Prodigy."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from t5x_like import parameters
from t5x_like.optimizers.base import Optimizer, as_schedule
from t5x_like.optimizers.groups import ParameterGroup, trainable_leaves
from t5x_like.optimizers.schedules import Schedule
from t5x_like.recorded import recorded


@recorded
def jointly(
    transform: optax.GradientTransformation,
    *,
    learning_rate: float | Schedule = 1.0,
    groups: Sequence[ParameterGroup] = (),
) -> Optimizer:
    """Creates an optimizer that applies an optax optimizer to all parameters together.

    The transform gets one dictionary, `{name: array}`, in which a stack of layers may be one array. Use it where sums
    over all parameters matter and others do not, as in Prodigy, and `from_optax` otherwise.

    The update is `learning_rate * (transform's update)`.

    Args:
      transform: An optax optimizer created with a learning rate of 1.
      learning_rate: Factor of the updates, a number or a schedule. For Prodigy 1, or a decay to 0.
      groups: Parameter groups; the first one that matches a parameter applies.
    """
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
        directions, plain = transform.update(given, plain, arrays_of(params), step=step)
        updates, rate = {}, schedule(step)
        for name, leaf in known.items():
            factor = leaf.broadcast_factor("learning_rate_factor", step) * leaf.broadcast_factor("update_factor", step)
            updates[name] = rate * factor * directions[name]
        new_state = parameters.rebuild(state, parameters.named_leaves(plain))
        return parameters.rebuild(gradients, updates), new_state

    return Optimizer(init, update, schedule, groups)
