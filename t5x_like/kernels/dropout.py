"""Dropout as a pure function of a random key."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def dropout(
    x: Float[Array, "..."], rate: float, key: jax.Array | None, *, broadcast_dims: Sequence[int] = ()
) -> Float[Array, "..."]:
    """Sets entries of `x` to zero with probability `rate` and divides the others by `1 - rate`.

    Source: Srivastava et al. 2014.

    Args:
      x: activations.
      rate: probability of dropping an entry, in [0, 1).
      key: random key; None disables dropout.
      broadcast_dims: dimensions along which all entries share one decision. T5 shares it along a sequence.

    Returns:
      An array with the shape and dtype of `x`.
    """
    if key is None or rate == 0.0:
        return x
    shape = list(x.shape)
    for dim in broadcast_dims:
        shape[dim] = 1
    keep = jax.random.bernoulli(key, 1.0 - rate, shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype)).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class Dropout:
    """Dropout with a fixed rate, as a model's configuration sets it for all layers.

    Attributes:
      rate: probability of dropping an entry, in [0, 1).
      broadcast_dims: see `dropout`.
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
      key: random key, or None where dropout is disabled.
      num: number of keys.

    Returns:
      `num` keys, or `num` Nones without a key.
    """
    return (None,) * num if key is None else tuple(jax.random.split(key, num))
