"""Order statistics of large arrays without a sort."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

_SIGN = np.uint32(1 << 31)
_BITS = 32


def kth_largest(x: Float[Array, "..."], k: Int[Array, ""] | int) -> Float[Array, ""]:
    """Returns the k-th largest element of an array, exactly.

    The 32 bits of the result are found one by one: each pass over the array counts the elements that are at least a
    candidate. Counts are sums of integers, so the result is the same on any number of devices, and a sharded array is
    not gathered, as a sort would.

    Args:
      x: float32, without NaN.
      k: From 1 to the size of `x`.
    """
    keys = _keys(x)

    def narrow(index, found):
        candidate = found | (_SIGN >> jnp.asarray(index, jnp.uint32))
        return jnp.where(jnp.count_nonzero(keys >= candidate) >= k, candidate, found)

    found = jax.lax.fori_loop(0, _BITS, narrow, jnp.uint32(0))
    bits = jnp.where(found >= _SIGN, found ^ _SIGN, ~found)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _keys(x: Float[Array, "..."]) -> Int[Array, "..."]:
    """Returns unsigned integers in the order of the floats: positive floats are in the order of their bits."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    return jnp.where(bits >= _SIGN, ~bits, bits | _SIGN)
