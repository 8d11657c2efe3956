"""Dropout as a function of its key: no key, no dropout."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def dropout(
    x: Float[Array, "..."], rate: float, key: jax.Array | None, *, broadcast_dims: Sequence[int] = ()
) -> Float[Array, "..."]:
    """Sets a share `rate` of `x` to zero and divides the rest by `1 - rate` (Srivastava et al., 2014).

    Args:
      x: activations.
      rate: the share to drop, in [0, 1).
      key: None for no dropout.
      broadcast_dims: dimensions along which one decision serves all entries; T5 drops alike along a sequence.
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
    """`dropout` with its rate and manner bound: what a network's configuration decides once for all its layers.

    Attributes:
      rate: the share to drop, in [0, 1).
      broadcast_dims: see `dropout`.
    """

    rate: float = 0.0
    broadcast_dims: tuple[int, ...] = ()

    def __call__(self, x: Float[Array, "..."], key: jax.Array | None) -> Float[Array, "..."]:
        return dropout(x, self.rate, key, broadcast_dims=self.broadcast_dims)


NO_DROPOUT = Dropout()


def split_key(key: jax.Array | None, sites: int) -> tuple[jax.Array | None, ...]:
    """One key for each of `sites` places that drop; Nones without a key."""
    return (None,) * sites if key is None else tuple(jax.random.split(key, sites))
