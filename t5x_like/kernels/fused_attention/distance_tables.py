"""Arrays with an entry per distance of a query and a key, in the order and size that the kernels read.

A table has the distances of all positions in whole blocks. Within a window, it has the distances of the tiles that the
kernels compute, so that its size does not depend on the length of a row.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.kernels.fused_attention.geometry import Geometry


def bias_vector(values: Float[Array, "heads given"], g: Geometry) -> Float[Array, "heads 1 relative"]:
    """Returns biases in the order of `query - key`, which starts at `1 - key_distances`.

    Args:
      values: `ScoreTerms.diagonals`.
      g: Sizes.
    """
    return _pad(values[..., ::-1].astype(jnp.float32), g.key_distances - g.kv_len, g)[:, None]


def bias_values(vector: Float[Array, "heads relative"], g: Geometry) -> Float[Array, "heads given"]:
    """Returns the gradient of the biases from the gradient of `bias_vector`."""
    return _unpad(vector, g.key_distances - g.kv_len, g)[..., ::-1]


def table_of(
    vectors: Float[Array, "directions given heads kv"], before: int, g: Geometry
) -> Float[Array, "directions heads_kv relative"]:
    """Returns a table of vectors, with the distances as the last dimension.

    Args:
      vectors: A vector per distance.
      before: Number of further distances at the start; negative if distances are left out.
      g: Sizes.
    """
    vectors = vectors.reshape(*vectors.shape[:2], -1)
    return _pad(jnp.swapaxes(vectors, 1, 2), before, g)


def vectors_of(
    table: Float[Array, "directions heads_kv relative"], before: int, g: Geometry
) -> Float[Array, "directions given heads kv"]:
    """Returns the inverse of `table_of`, 0 for distances that were left out."""
    vectors = jnp.swapaxes(_unpad(table, before, g), 1, 2)
    return vectors.reshape(*vectors.shape[:2], g.heads, g.head_dim)


def _pad(x, before: int, g: Geometry):
    return _pad_last(x, before, g.distances - before - x.shape[-1])


def _unpad(x, before: int, g: Geometry):
    return _pad_last(x, -before, g.q_len + g.kv_len - 1 - g.distances + before)


def _pad_last(x, before: int, after: int):
    """Pads the last dimension with zeros; negative numbers remove entries."""
    return jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(before, after, 0)])
