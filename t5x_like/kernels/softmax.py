"""The softmax of attention weights."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.custom_jvp
def softmax(scores: Float[Array, "*rows kv_len"]) -> Float[Array, "*rows kv_len"]:
    """Computes a softmax over the last dimension and saves only its result for the backward pass.

    `jax.nn.softmax` also saves scores, exponentials and sums: 1 GB for T5 1.1 small on 8 rows of 512 tokens, a quarter
    of all activations.

    Args:
      scores: Unnormalized log-probabilities.

    Returns:
      Probabilities that sum to 1 along the last dimension.
    """
    exponentials = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return exponentials / jnp.sum(exponentials, axis=-1, keepdims=True)


@softmax.defjvp
def _softmax_jvp(primals, tangents):
    probabilities, tangent = softmax(*primals), tangents[0]
    mean = jnp.sum(probabilities * tangent, axis=-1, keepdims=True)
    return probabilities, probabilities * (tangent - mean)
