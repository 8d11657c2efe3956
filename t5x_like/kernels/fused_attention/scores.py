"""The scores of a step, as both passes compute them."""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from t5x_like.kernels.fused_attention import distances, masking, tiles
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import Operands
from t5x_like.kernels.masks import MASK_VALUE
from t5x_like.kernels.scoring import limited

Tile = Float[Array, "keys queries"]


class Scores:
    """The tiles of all heads of a step. What heads share is computed once.

    Args:
      refs: Blocks of the operands.
      geometry: Sizes.
      row: Row of this device.
      head_step: Group of heads.
      i: Block of queries.
      j: Block of keys.
    """

    def __init__(self, refs: Operands, geometry: Geometry, row, head_step, i, j):
        self.refs, self.geometry, self.i, self.j = refs, geometry, i, j
        self.row, self.first_head = row, head_step * geometry.step_heads
        self.queries, self.keys = tiles.positions(geometry, i, j)
        row_of = lambda ref: None if ref is None else ref[0]  # noqa: E731
        column_of = lambda ref: None if ref is None else tiles.column(ref[0])  # noqa: E731
        self.visible = masking.visible(
            geometry,
            self.queries,
            self.keys,
            query_segments=row_of(refs.query_segments),
            key_segments=column_of(refs.key_segments),
            prefix=column_of(refs.prefix),
            query_ranks=row_of(refs.query_ranks),
            key_ranks=column_of(refs.key_ranks),
        )
        self.direction = 0 if refs.direction is None else refs.direction[row]
        self.same_type = tiles.column(refs.key_types[0]) == refs.query_types[0] if geometry.types else None

    def _features(self, head):
        size = self.geometry.head_dim
        return slice(head * size, (head + 1) * size)

    def _head(self, ref, head):
        return ref[0, self._features(head), :]

    def query(self, head: int, ref=None) -> Float[Array, "kv queries"]:
        """Returns the queries of a query head, or the same head of another array with their shape."""
        return self._head(self.refs.q if ref is None else ref, head)

    def biased_query(self, head: int, bias_ref) -> Float[Array, "kv queries"]:
        """Returns the queries of a query head, with a bias unless `bias_ref` is None."""
        query = self.query(head)
        if bias_ref is None:
            return query
        return (query.astype(jnp.float32) + bias_ref[self._features(head), :]).astype(query.dtype)

    def key(self, head: int) -> Float[Array, "kv keys"]:
        """Returns the keys of a query head."""
        return self._head(self.refs.k, head // self.geometry.group)

    def value(self, head: int) -> Float[Array, "kv keys"]:
        """Returns the values of a query head."""
        return self._head(self.refs.v, head // self.geometry.group)

    @property
    def bias_start(self):
        """First entry of the biases of this tile, and of its table of keys."""
        g = self.geometry
        return pl.multiple_of((self.i * g.block_q - self.j * g.block_k) + g.key_distances - g.block_k, tiles.LANES)

    def query_vectors(self, head: int, ref) -> distances.Vectors:
        """Returns the vectors of the distances of this tile in the table of queries, or in its gradient."""
        g = self.geometry
        start = (self.j * g.block_k - self.i * g.block_q) + g.query_distances - g.block_q
        return distances.Vectors(ref, self.direction, self._features(head), start)

    def key_vectors(self, head: int, ref) -> distances.Vectors:
        """Returns the vectors of the distances of this tile in the table of keys, or in its gradient."""
        return distances.Vectors(ref, self.direction, self._features(head), self.bias_start)

    def _unmasked(self, head: int) -> tuple[Tile, Tile | None]:
        """Returns the scores before the mask, and their derivative by the scaled products; None for 1."""
        g, refs = self.geometry, self.refs
        score = tiles.dot_tn(self.key(head), self.biased_query(head, refs.content_bias))
        if g.query_table:
            query, vectors = self.biased_query(head, refs.position_bias), self.query_vectors(head, refs.query_table)
            blocks = distances.products(query, vectors, g.block_k, strided=g.strided)
            score = score + jnp.concatenate([block.T for block in blocks], axis=1)
        if g.key_table:
            vectors = self.key_vectors(head, refs.key_table)
            blocks = distances.products(self.key(head), vectors, g.block_q, strided=g.strided)
            score = score + jnp.concatenate(blocks, axis=0)
        if g.types:
            score = score + jnp.where(self.same_type, self.refs.same_type[0, head], 0.0)
        if g.scale != 1.0:
            score = score * g.scale
        if g.softcap is not None:
            return limited(score, g.softcap)
        if g.biased:
            values = self.refs.bias[head, :, pl.ds(self.bias_start, g.block_q + g.block_k)]
            score = score + tiles.bias_tile(values, g)
        return score, None

    def of(self, head: int) -> Tile:
        """Returns the scores of a head, `MASK_VALUE` for masked keys."""
        score, _ = self._unmasked(head)
        return score if self.visible is None else jnp.where(self.visible, score, MASK_VALUE)

    def weights(self, head: int, lse: Float[Array, "1 queries"]) -> tuple[Tile, Tile | None]:
        """Returns the attention weights of a head, and the derivative of its scores by scaled products; None for 1.

        Args:
          head: Query head of the step.
          lse: Log-sum-exp of the scores of each query.
        """
        score, derivative = self._unmasked(head)
        logarithm = score - lse
        if self.visible is not None:
            logarithm = jnp.where(self.visible, logarithm, masking.hidden_logarithm(lse, self.geometry))
        return self.without_padding(jnp.exp(logarithm)), derivative

    def without_padding(self, weights: Tile) -> Tile:
        """Removes the keys that only fill a block from the average of a query that sees no key."""
        g = self.geometry
        if g.skips or not (g.segments or g.ranks) or g.padded_k == g.kv_len:
            return weights
        return jnp.where(self.keys < g.kv_len, weights, 0.0)

    def dropped(self, head: int, x: Tile) -> Tile:
        """Sets dropped entries to zero, without scaling the others."""
        g = self.geometry
        if g.dropout_rate == 0.0:
            return x
        seeds = self.refs.seeds
        number = (seeds[2] + self.row) * seeds[4] + seeds[3] + self.first_head + head
        return jnp.where(masking.keep((seeds[0], seeds[1]), number, self.queries, self.keys, g.dropout_rate), x, 0.0)
