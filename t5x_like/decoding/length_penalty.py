"""Length penalties, by which log-probabilities of texts of different lengths become comparable."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.decoding.settings import Decoding


def length_penalty(decoding: Decoding, length: Int[Array, "..."] | int) -> Float[Array, "..."]:
    """Returns what the log-probability of a text is divided by.

    Args:
      decoding: The settings. `power` is length**alpha, as in transformers. `gnmt` is ((5 + length) / 6)**alpha (Wu et
        al. 2016, equation 14).
      length: Number of generated tokens, EOS included.
    """
    base = jnp.asarray(length, jnp.float32)
    return (base if decoding.length_penalty == "power" else (5 + base) / 6) ** decoding.alpha
