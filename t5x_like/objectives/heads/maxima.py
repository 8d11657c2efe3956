"""Maxima over tokens or windows, for heads."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def largest(states: Float[Array, "batch n ..."], chosen: Bool[Array, "batch n ..."]) -> Float[Array, "batch ..."]:
    """Returns the largest value of each feature over the chosen states; 0 if there are none.

    The gradient goes to one state. That of `jnp.max` goes to the states that equal the maximum, which may be none of
    them if a compiled program computes states again with another rounding.

    Args:
      states: States.
      chosen: Which of them count, with dimensions of size 1 for those of the features.
    """
    index = jnp.argmax(jnp.where(chosen, states, -jnp.inf), axis=1, keepdims=True)
    found = jnp.take_along_axis(states, index, axis=1)[:, 0]
    return jnp.where(jnp.any(chosen, axis=1), found, 0)
