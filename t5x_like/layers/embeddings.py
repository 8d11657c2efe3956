"""Embeddings of tokens, positions and token types, and logits by the tokens' table."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.layers.initializers import Initializer, normal
from t5x_like.layers.projections import shard_activation

STANDARD_NORMAL = normal(1.0)


class Embedder(nnx.Module):
    """A vector for each id.

    Attributes:
      embedding: float32 `[ids, embed]`.
    """

    def __init__(
        self,
        number: int,
        size: int,
        *,
        key: jax.Array,
        axis: str = "vocab",
        init: Initializer = STANDARD_NORMAL,
        dtype: str = "float32",
    ):
        """Args:
        number: of ids.
        size: of a vector.
        key: for the initial values.
        axis: logical axis of the ids: `vocab`, `positions` or `token_types`.
        init: of the table.
        dtype: of the activations.
        """
        self.embedding = nnx.Param(init(key, (number, size), 1), axes=(axis, "embed"))
        self.dtype = dtype

    def __call__(self, ids: Int[Array, "batch length"]) -> Float[Array, "batch length embed"]:
        """The ids' vectors; NaN for an id that has none, which the loss then shows."""
        # Rows are taken in float32 and cast afterwards, so that the gradients of a frequent id add up in float32.
        rows = jnp.take(self.embedding[...], ids, axis=0, mode="fill", fill_value=jnp.nan)
        return shard_activation(rows.astype(self.dtype), "embed")

    def attend(self, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch length vocab"]:
        """Inner products with every id's vector, in float32."""
        return logits(hidden, self.embedding[...].T)


def logits(
    hidden: Float[Array, "batch length embed"], kernel: Float[Array, "embed vocab"]
) -> Float[Array, "batch length vocab"]:
    """`hidden · kernel`: factors in the dtype of `hidden`, sums in float32."""
    product = jnp.einsum("ble,ev->blv", hidden, kernel.astype(hidden.dtype), preferred_element_type=jnp.float32)
    length = "length" if hidden.shape[1] > 1 else None
    return partitioning.shard(product, "batch", length, "vocab")


def position_ids(
    batch: int, length: int, positions: Int[Array, "batch length"] | None = None
) -> Int[Array, "batch length"]:
    """`positions`, or 0, 1, 2 … along each row where none are given."""
    if positions is not None:
        return positions
    return jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
