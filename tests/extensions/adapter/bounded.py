"""An adapter with a hook after each update: factors of the outputs of projections that stay within bounds."""

import dataclasses

import jax.numpy as jnp
from flax import nnx

from t5x_like import parameters
from t5x_like.adapters.lifecycle import Hooks
from t5x_like.layers.projections import Projection
from t5x_like.recorded import recorded


class Factors(nnx.Module):
    """A factor per output, initially 1."""

    def __init__(self, projection):
        count = projection.num_inputs
        self.factor = nnx.Param(jnp.ones(projection.kernel.shape[count:]), axes=projection.axes[count:])

    def __call__(self, x, projection, *, dropout_key=None):
        y = projection.product(x)
        return y * self.factor[...].astype(y.dtype)

    def merged(self, module):
        return {"kernel": module.dense_kernel * self.factor[...]}


@dataclasses.dataclass(frozen=True)
class Bounds(Hooks):
    """Moves factors outside of the bounds onto them, and reports the part of the factors that are there."""

    limit: float

    def after_update(self, trainable, frozen, step):
        return parameters.map_named(
            lambda name, leaf: jnp.clip(leaf, 1 - self.limit, 1 + self.limit) if is_factor(name) else leaf, trainable
        )

    def metrics(self, trainable, frozen):
        factors = [leaf for name, leaf in parameters.named_leaves(trainable).items() if is_factor(name)]
        at_bound = sum(jnp.sum(jnp.abs(leaf - 1) >= 0.999 * self.limit) for leaf in factors)
        return {"at_bound": (at_bound.astype(jnp.float32), jnp.float32(sum(leaf.size for leaf in factors)))}


def is_factor(name):
    return name.endswith("/adapter/factor")


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundedScale:
    """Multiplies the outputs of some projections by trained factors between 1 - limit and 1 + limit."""

    target = Projection
    pattern: str = r"attention/value$"
    limit: float = 0.05

    @property
    def hooks(self):
        return Bounds(self.limit)

    def make(self, projection, key, name):
        return Factors(projection)
