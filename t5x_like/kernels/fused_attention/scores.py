"""The scores of a step, as both passes compute them."""

import math

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from t5x_like.kernels.fused_attention import tiles
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import Operands
from t5x_like.kernels.masks import MASK_VALUE

Tile = Float[Array, "keys queries"]


class Scores:
    """The tiles of all heads of a step. What heads share is computed once.

    Args:
      refs: blocks of the operands.
      geometry: sizes.
      row: row of this device.
      head_step: group of heads.
      i: block of queries.
      j: block of keys.
    """

    def __init__(self, refs: Operands, geometry: Geometry, row, head_step, i, j):
        self.refs, self.geometry, self.i, self.j = refs, geometry, i, j
        self.row, self.first_head = row, head_step * geometry.step_heads
        self.queries, self.keys = tiles.positions(geometry, i, j)
        rows = [None if ref is None else ref[0] for ref in (refs.query_segments, refs.key_segments, refs.prefix)]
        self.visible = tiles.visible(geometry, self.queries, self.keys, *rows)

    def _head(self, ref, head):
        size = self.geometry.head_dim
        return ref[0, head * size : (head + 1) * size, :]

    def query(self, head: int, ref=None) -> Float[Array, "kv queries"]:
        """Returns the queries of a query head, or the same head of another array with their shape."""
        return self._head(self.refs.q if ref is None else ref, head)

    def key(self, head: int) -> Float[Array, "kv keys"]:
        """Returns the keys of a query head."""
        return self._head(self.refs.k, head // self.geometry.group)

    def value(self, head: int) -> Float[Array, "kv keys"]:
        """Returns the values of a query head."""
        return self._head(self.refs.v, head // self.geometry.group)

    @property
    def bias_start(self):
        """First entry of the biases of this tile."""
        g = self.geometry
        return pl.multiple_of((self.i * g.block_q - self.j * g.block_k) + g.padded_k - g.block_k, tiles.LANES)

    def _unmasked(self, head: int) -> Tile:
        g = self.geometry
        score = tiles.dot_tn(self.key(head), self.query(head))
        if g.scale != 1.0:
            score = score * g.scale
        if g.biased:
            values = self.refs.bias[head, :, pl.ds(self.bias_start, g.block_q + g.block_k)]
            score = score + tiles.bias_tile(values, g)
        return score

    def of(self, head: int) -> Tile:
        """Returns the scores of a head, `MASK_VALUE` for masked keys."""
        score = self._unmasked(head)
        return score if self.visible is None else jnp.where(self.visible, score, MASK_VALUE)

    def weights(self, head: int, lse: Float[Array, "1 queries"]) -> Tile:
        """Returns the attention weights of a head.

        Args:
          head: query head of the step.
          lse: log-sum-exp of the scores of each query.
        """
        logarithm = self._unmasked(head) - lse
        if self.visible is not None:
            hidden = MASK_VALUE
            if not self.geometry.skips:  # a query without visible keys averages all values
                hidden = jnp.where(lse > MASK_VALUE / 2, hidden, -math.log(self.geometry.kv_len))
            logarithm = jnp.where(self.visible, logarithm, hidden)
        return self.without_padding(jnp.exp(logarithm))

    def without_padding(self, weights: Tile) -> Tile:
        """Removes the keys that only fill a block from the average of a query that sees no key."""
        g = self.geometry
        if g.skips or not g.segments or g.padded_k == g.kv_len:
            return weights
        return jnp.where(self.keys < g.kv_len, weights, 0.0)

    def dropped(self, head: int, x: Tile) -> Tile:
        """Sets dropped entries to zero, without scaling the others."""
        g = self.geometry
        if g.dropout_rate == 0.0:
            return x
        seeds = self.refs.seeds
        number = (seeds[2] + self.row) * seeds[4] + seeds[3] + self.first_head + head
        return jnp.where(tiles.keep((seeds[0], seeds[1]), number, self.queries, self.keys, g.dropout_rate), x, 0.0)
