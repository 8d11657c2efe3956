"""Dropout as a pure function of a random key."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

# Index of the first key that `jax.random.fold_in` derives from a key for a purpose of its own. Counters and the keys of
# `jax.random.split` have smaller indices.
FIRST_NAMED_KEY = 2**31


def dropout(
    x: Float[Array, "..."], rate: float, key: jax.Array | None, *, broadcast_dims: Sequence[int] = ()
) -> Float[Array, "..."]:
    """Sets entries of `x` to zero with probability `rate` and divides the others by `1 - rate`.

    Source: Srivastava et al. 2014. Each decision is a hash of the key and of the indices of the entry, so that it
    depends neither on devices nor on the program. The backward pass repeats the decisions instead of storing them.

    Args:
      x: Activations.
      rate: Probability of dropping an entry, in [0, 1).
      key: Random key; None disables dropout.
      broadcast_dims: Dimensions along which all entries share one decision. T5 shares it along a sequence.

    Returns:
      An array with the shape and dtype of `x`.
    """
    if key is None or rate == 0.0:
        return x
    shape = list(x.shape)
    for dim in broadcast_dims:
        shape[dim] = 1
    seeds = lax.bitcast_convert_type(jax.random.bits(key, (2,)), jnp.int32)
    return _dropped(x, seeds, rate, tuple(shape))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _dropped(x: Array, seeds: Int[Array, " 2"], rate: float, shape: tuple[int, ...]) -> Array:
    return jnp.where(_keep(seeds, rate, shape), x / (1.0 - rate), jnp.zeros((), x.dtype)).astype(x.dtype)


def _forward(x, seeds, rate, shape):
    return _dropped(x, seeds, rate, shape), seeds


def _backward(rate, shape, seeds, gradient):
    return _dropped(gradient, seeds, rate, shape), None


_dropped.defvjp(_forward, _backward)


def _keep(seeds: Int[Array, " 2"], rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """Decides which entries are kept, independently for each with probability `1 - rate`."""
    *rows, columns = shape
    row = jnp.zeros((*rows, 1), jnp.int32)
    for dim, size in enumerate(rows):  # the index of a row, modulo 2**32
        row = row * np.int32(size) + lax.broadcasted_iota(jnp.int32, row.shape, dim)
    column = lax.broadcasted_iota(jnp.int32, (1,) * len(rows) + (columns,), len(rows))
    # Rows and columns are hashed first, so that an entry takes a single hash of one word.
    bits = mix_bits(mix_bits(row ^ seeds[0]) ^ mix_bits(column ^ seeds[1]))
    return bits >= threshold(rate)


def threshold(rate: float) -> np.int32:
    """Returns the smallest of the random 32-bit numbers that are kept at a dropout rate."""
    return np.int32(round(rate * 2**32) - 2**31)


def mix_bits(x: Int[Array, "..."]) -> Int[Array, "..."]:
    """Mixes the bits of 32-bit numbers (the finalizer of MurmurHash3, Appleby 2011)."""
    x = x ^ lax.shift_right_logical(x, np.int32(16))
    x = x * np.int32(0x85EBCA6B - 2**32)
    x = x ^ lax.shift_right_logical(x, np.int32(13))
    x = x * np.int32(0xC2B2AE35 - 2**32)
    return x ^ lax.shift_right_logical(x, np.int32(16))


@dataclasses.dataclass(frozen=True)
class Dropout:
    """Dropout with a fixed rate, as a model's configuration sets it for all layers.

    Attributes:
      rate: Probability of dropping an entry, in [0, 1).
      broadcast_dims: See `dropout`.
    """

    rate: float = 0.0
    broadcast_dims: tuple[int, ...] = ()

    def __call__(self, x: Float[Array, "..."], key: jax.Array | None) -> Float[Array, "..."]:
        """Applies `dropout`; a `key` of None disables it."""
        return dropout(x, self.rate, key, broadcast_dims=self.broadcast_dims)


NO_DROPOUT = Dropout()


def split_key(key: jax.Array | None, num: int) -> tuple[jax.Array | None, ...]:
    """Splits an optional random key.

    Args:
      key: Random key, or None where dropout is disabled.
      num: Number of keys.

    Returns:
      `num` keys, or `num` Nones without a key.
    """
    return (None,) * num if key is None else tuple(jax.random.split(key, num))
