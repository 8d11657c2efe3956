"""Further queries at arbitrary positions, the second stream of XLNet (Yang et al. 2019, section 2.3).

The kernels compute the distance of a query and a key from their indices. Further queries are therefore moved to the
indices of their positions, in an array of their own, and their outputs are moved back. Products with a one-hot matrix
move them, which are exact. Indices without a query are computed as well.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.kernels.masks import Mask
from t5x_like.kernels.score_bias import ScoreTerms


def first(q: Float[Array, "batch q_len heads kv"], mask: Mask, terms: ScoreTerms) -> tuple[Array, Mask, ScoreTerms]:
    """Returns the queries before the further ones, with their mask and terms."""
    return _with_queries(q, mask, terms, lambda x, axis: jax.lax.slice_in_dim(x, 0, _length(q, terms), axis=axis))


def further(q: Float[Array, "batch q_len heads kv"], mask: Mask, terms: ScoreTerms) -> tuple[Array, Mask, ScoreTerms]:
    """Returns the further queries at the indices of their positions, with their mask and terms."""
    length = _length(q, terms)
    places = jax.nn.one_hot(terms.further, length, dtype=jnp.float32)

    def move(x, axis):
        x = jnp.moveaxis(jax.lax.slice_in_dim(x, length, x.shape[axis], axis=axis), axis, 1)
        if jnp.issubdtype(x.dtype, jnp.integer):
            rows = jnp.arange(len(x))[:, None]
            return jnp.zeros((len(x), length), x.dtype).at[rows, terms.further].set(x)
        moved = jnp.einsum("bnl,bn...->bl...", places.astype(x.dtype), x, precision=jax.lax.Precision.HIGHEST)
        return jnp.moveaxis(moved, 1, axis)

    return _with_queries(q, mask, terms, move)


def join(
    first: Float[Array, "batch length heads kv"],
    moved: Float[Array, "batch length heads kv"],
    positions: Int[Array, "batch further"],
) -> Float[Array, "batch q_len heads kv"]:
    """Returns the outputs of all queries.

    Args:
      first: Outputs of `first`.
      moved: Outputs of `further`.
      positions: `ScoreTerms.further`.
    """
    places = jax.nn.one_hot(positions, first.shape[1], dtype=moved.dtype)
    back = jnp.einsum("bnl,blhd->bnhd", places, moved, precision=jax.lax.Precision.HIGHEST)
    return jnp.concatenate([first, back], axis=1)


def _length(q, terms: ScoreTerms) -> int:
    return q.shape[1] - terms.further.shape[1]


def _with_queries(q, mask: Mask, terms: ScoreTerms, change) -> tuple[Array, Mask, ScoreTerms]:
    """Changes the arrays per query: `change` takes an array and its dimension of queries."""
    changed = lambda x, axis: None if x is None else change(x, axis)  # noqa: E731
    mask = dataclasses.replace(
        mask, query_segments=changed(mask.query_segments, 1), query_ranks=changed(mask.query_ranks, 1)
    )
    types, same_type = changed(terms.query_types, 1), changed(terms.same_type, 2)
    return change(q, 1), mask, terms.replace(query_types=types, same_type=same_type, further=None)
