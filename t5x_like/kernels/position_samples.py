"""Samples of tokens at each position, from logits that are computed in chunks."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from t5x_like.errors import UserError
from t5x_like.kernels.chunks import Readout, map_positions


def sample(
    readout: Readout,
    row_keys: Key[Array, " batch"],
    *,
    positions: Int[Array, "batch length"] | None = None,
    temperature: float = 1.0,
    budget_bytes: int | None = None,
) -> Int[Array, "batch length"]:
    """Draws a class at each position from the softmax of its logits, by adding Gumbel noise (Gumbel 1954).

    A draw depends on the key of its row, on its position and on its logits alone. Nothing has a gradient.

    Args:
      readout: The logits.
      row_keys: One key per row, such as `objectives.keys.Keys.rows`.
      positions: Number of each position, for its draw; 0, 1, 2 … by default. Equal numbers in a row have equal noise.
      temperature: Divisor of the logits.
      budget_bytes: See `chunks.sum_over_positions`.

    Returns:
      Class ids, int32.

    Raises:
      UserError: There are no keys.
    """
    if row_keys is None:
        raise UserError("row_keys=None: samples need one key per row. Set `draws = True` in the objective.")

    def draw(key, position, logits):
        noise = jax.random.gumbel(jax.random.fold_in(key, position), logits.shape)
        return jnp.argmax(logits / temperature + noise).astype(jnp.int32)

    def draw_chunk(logits, positions):
        return jax.vmap(jax.vmap(draw, (None, 0, 0)))(row_keys, positions, logits.astype(jnp.float32))

    batch, length = readout.hidden.shape[:2]
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
    detached = Readout(jax.lax.stop_gradient(readout.hidden), lambda x: jax.lax.stop_gradient(readout.logits(x)))
    return map_positions(detached, draw_chunk, positions, budget_bytes=budget_bytes)
