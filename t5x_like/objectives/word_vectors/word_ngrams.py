"""Buckets of n-grams of words, as fastText computes them (Joulin et al. 2017, arXiv:1607.01759, section 2.2).

The hash of an n-gram is h ← 116049371 · h + hash of the next word, modulo 2^64, from the signed 32-bit hashes of its
words. Here a number of 64 bits is a pair of 32 bits, high and low, because JAX has no 64 bits by default.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

MAX_BUCKETS = 2**24
"""Largest number of buckets: a remainder and another byte have 32 bits."""
_FACTOR = 116049371
_LOW, _HALF = 0xFFFF, 16
_BYTES = range(24, -1, -8)


def buckets_of_ngrams(
    hashes: UInt32[Array, "batch length"], valid: Bool[Array, "batch length"], longest: int, number: int
) -> tuple[Int[Array, "batch ngrams"], Bool[Array, "batch ngrams"]]:
    """Returns the buckets of the n-grams of 2 to `longest` words, and which of them exist.

    Args:
      hashes: Hashes of the words.
      valid: False for padding and words without a hash, which no n-gram contains.
      longest: Largest number of words.
      number: Number of buckets, at most `MAX_BUCKETS`.
    """
    found, exist = [], []
    high, low, inside = _sign(hashes), hashes, valid
    for size in range(2, longest + 1):
        shift = size - 1
        following = jnp.pad(hashes[:, shift:], ((0, 0), (0, shift)))
        high, low = _next(high, low, following)
        inside = inside & jnp.pad(valid[:, shift:], ((0, 0), (0, shift)))
        found.append(_modulo(high, low, number))
        exist.append(inside)
    return jnp.concatenate(found, axis=1).astype(jnp.int32), jnp.concatenate(exist, axis=1)


def _sign(x: Array) -> Array:
    """Returns the high bits of a signed number of 32 bits."""
    return jnp.where(x >> 31 == 1, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))


def _next(high: Array, low: Array, added: Array) -> tuple[Array, Array]:
    """Returns `_FACTOR` times a number, plus a signed number of 32 bits, modulo 2^64."""
    factor = jnp.uint32(_FACTOR)
    (low_1, low_0), (factor_1, factor_0) = ((x >> _HALF, x & _LOW) for x in (low, factor))
    first, cross, other, last = low_0 * factor_0, low_0 * factor_1, low_1 * factor_0, low_1 * factor_1
    middle = (first >> _HALF) + (cross & _LOW) + (other & _LOW)
    product = (middle << _HALF) | (first & _LOW)
    carried = last + (cross >> _HALF) + (other >> _HALF) + (middle >> _HALF)
    total = product + added
    return high * factor + carried + _sign(added) + (total < product).astype(jnp.uint32), total


def _modulo(high: Array, low: Array, number: int) -> Array:
    """Returns the remainder of a number, byte by byte."""
    remainder, divisor = jnp.zeros_like(low), jnp.uint32(number)
    for part in (high, low):
        for shift in _BYTES:
            remainder = jax.lax.rem((remainder << 8) | ((part >> shift) & 0xFF), divisor)
    return remainder
