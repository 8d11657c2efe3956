"""Rotary position embeddings of queries and keys (RoPE)."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.layers import rope_scaling


@dataclasses.dataclass(frozen=True)
class Rotary:
    """Rotates pairs of entries by angles proportional to the position (Su et al. 2021, section 3.2.2).

    Entry i is paired with entry i + kv / 2, as in the Llama weights of transformers, or entry 2i with entry 2i + 1. The
    pair is rotated by `position · theta^(-2i / kv)`.

    Attributes:
      theta: Base of the wavelengths.
      scaling: Scaling of the frequencies to longer rows; None for no scaling.
      interleaved: Whether neighbors are pairs, as in the paper.
    """

    theta: float = 10000.0
    scaling: rope_scaling.Scaling | None = None
    interleaved: bool = False

    def __call__(
        self, x: Float[Array, "batch length heads kv"], positions: Int[Array, "batch length"]
    ) -> Float[Array, "batch length heads kv"]:
        """Rotates `x` in float32.

        Args:
          x: Queries or keys.
          positions: Position of each token.

        Returns:
          The rotated array, in the dtype of `x`.
        """
        size, factor = x.shape[-1], 1.0
        if self.scaling is None:
            frequencies = rope_scaling.unscaled(self.theta, size)
        else:
            frequencies = self.scaling.frequencies(self.theta, size, jnp.max(positions) + 1)
            factor = self.scaling.attention_factor
        angles = positions[:, :, None, None].astype(jnp.float32) * frequencies
        sine, cosine = jnp.sin(angles) * factor, jnp.cos(angles) * factor
        x32 = x.astype(jnp.float32)
        first, second = (x32[..., ::2], x32[..., 1::2]) if self.interleaved else jnp.split(x32, 2, axis=-1)
        rotated = first * cosine - second * sine, second * cosine + first * sine
        joined = jnp.stack(rotated, axis=-1).reshape(x.shape) if self.interleaved else jnp.concatenate(rotated, axis=-1)
        return joined.astype(x.dtype)
