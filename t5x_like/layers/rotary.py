"""Positions as rotations of queries and keys (RoPE)."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotates pairs of entries by angles that grow with the position (Su et al. 2021, section 3.2.2).

    Entry i is paired with entry i + kv / 2, as in Llama's weights of transformers, and turns by
    `position · theta^(-2i / kv)`.

    Attributes:
      theta: base of the wave lengths.
    """

    theta: float = 10000.0

    def __call__(
        self, x: Float[Array, "batch length heads kv"], positions: Int[Array, "batch length"]
    ) -> Float[Array, "batch length heads kv"]:
        """`x` rotated in float32, in its own dtype."""
        half = x.shape[-1] // 2
        frequencies = self.theta ** (-np.arange(half, dtype=np.float32) / np.float32(half))
        angles = positions[:, :, None, None].astype(jnp.float32) * frequencies
        sine, cosine = jnp.sin(angles), jnp.cos(angles)
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        rotated = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
        return rotated.astype(x.dtype)
