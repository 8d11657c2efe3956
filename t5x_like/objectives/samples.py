"""Rows of a decoder in which a sample of the model follows a prompt."""

import jax.numpy as jnp
from jaxtyping import Array, Int


def place(
    tokens: Int[Array, "batch length"],
    sample: Int[Array, "batch sampled"],
    before: Int[Array, "batch 1"],
    count: Int[Array, "batch 1"],
) -> Int[Array, "batch length"]:
    """Returns rows with the first `before` tokens, then a sample up to `count` tokens, then zeros."""
    at = jnp.arange(tokens.shape[1])
    moved = jnp.take_along_axis(sample, jnp.clip(at - before, 0, sample.shape[1] - 1), axis=1)
    return jnp.where(at < before, tokens, jnp.where(at < count, moved, 0))
