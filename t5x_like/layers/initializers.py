"""Initial values of kernels and tables: functions of a key, a shape, and how many of its dimensions are inputs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# initializer(key, shape, inputs) -> float32 array; the first `inputs` dimensions of `shape` are summed over.
Initializer = Callable[[jax.Array, tuple[int, ...], int], Float[Array, "..."]]


def normal(deviation: float) -> Initializer:
    """A normal distribution, whatever the shape."""
    return lambda key, shape, inputs: deviation * jax.random.normal(key, shape, jnp.float32)


def truncated_normal(deviation: float) -> Initializer:
    """A normal distribution of standard deviation `deviation` cut at two of them, as TensorFlow's, which narrows it."""
    return lambda key, shape, inputs: deviation * jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)


def fan_in(variance: float = 1.0, *, truncated: bool = False) -> Initializer:
    """Variance `variance / (number of inputs)`; where it is cut at two deviations, it is stretched back to that."""

    def initializer(key, shape, inputs):
        return jax.nn.initializers.variance_scaling(
            variance,
            "fan_in",
            "truncated_normal" if truncated else "normal",
            in_axis=range(inputs),
            out_axis=range(inputs, len(shape)),
        )(key, shape, jnp.float32)

    return initializer


# Of every kernel and table of BERT, and of the heads over it: `initializer_range` of the released configurations.
BERT = truncated_normal(0.02)
