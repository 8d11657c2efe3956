"""Initializers of kernels and embedding tables."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# initializer(key, shape, num_inputs) -> float32 array. The first `num_inputs` dimensions of `shape` are contracted.
Initializer = Callable[[jax.Array, tuple[int, ...], int], Float[Array, "..."]]


def normal(stddev: float) -> Initializer:
    """Returns an initializer that draws from a normal distribution.

    Args:
      stddev: Standard deviation.
    """
    return lambda key, shape, num_inputs: stddev * jax.random.normal(key, shape, jnp.float32)


def truncated_normal(stddev: float) -> Initializer:
    """Returns an initializer that draws from a normal distribution truncated at ±2 standard deviations.

    As in TensorFlow, truncation reduces the standard deviation of the values to 0.8796 times `stddev`.

    Args:
      stddev: Standard deviation before truncation.
    """
    return lambda key, shape, num_inputs: stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)


def uniform(bound: float) -> Initializer:
    """Returns an initializer that draws from the uniform distribution over [-bound, bound).

    Args:
      bound: Largest absolute value.
    """
    return lambda key, shape, num_inputs: jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def fan_in(variance: float = 1.0, *, truncated: bool = False) -> Initializer:
    """Returns an initializer whose values have the variance `variance / fan_in`.

    Args:
      variance: Variance times the number of inputs of the kernel.
      truncated: Whether the normal distribution is truncated at ±2 standard deviations and rescaled to the variance.
    """

    def initializer(key, shape, num_inputs):
        return jax.nn.initializers.variance_scaling(
            variance,
            "fan_in",
            "truncated_normal" if truncated else "normal",
            in_axis=range(num_inputs),
            out_axis=range(num_inputs, len(shape)),
        )(key, shape, jnp.float32)

    return initializer


def glorot_uniform(key: jax.Array, shape: tuple[int, ...], num_inputs: int) -> Float[Array, "..."]:
    """Draws from the uniform distribution with variance 2 / (inputs + outputs) (Glorot and Bengio 2010, equation 16).

    Args:
      key: Random key.
      shape: Shape of the kernel.
      num_inputs: Number of contracted dimensions.
    """
    return jax.nn.initializers.glorot_uniform(in_axis=range(num_inputs), out_axis=range(num_inputs, len(shape)))(
        key, shape, jnp.float32
    )


def orthogonal(key: jax.Array, shape: tuple[int, ...], num_inputs: int) -> Float[Array, "..."]:
    """Draws orthogonal matrices uniformly, one per gate (Saxe et al. 2014, arXiv:1312.6120).

    Args:
      key: Random key.
      shape: Shape of the kernel, `[size, gates, size]`.
      num_inputs: Number of contracted dimensions, 1.
    """
    size, gates, _ = shape
    return jnp.moveaxis(jax.random.orthogonal(key, size, (gates,), jnp.float32), 0, 1)


# Initializer of the heads of BERT: `initializer_range` of the released configurations.
BERT = truncated_normal(0.02)
