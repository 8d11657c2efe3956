"""Token embeddings, and logits by the same table."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.layers.projections import shard_activation


class TokenEmbedder(nnx.Module):
    """A vector for each token.

    Attributes:
      embedding: float32 `[vocab, embed]`, initially standard normal.
    """

    def __init__(self, vocab_size: int, size: int, *, key: jax.Array, dtype: str = "float32"):
        """Args:
        vocab_size: number of tokens.
        size: of a vector.
        key: for the initial values.
        dtype: of the activations.
        """
        self.embedding = nnx.Param(jax.random.normal(key, (vocab_size, size), jnp.float32), axes=("vocab", "embed"))
        self.dtype = dtype

    def __call__(self, tokens: Int[Array, "batch length"]) -> Float[Array, "batch length embed"]:
        """The tokens' vectors; NaN for an id outside the vocabulary, which the loss then shows."""
        # Rows are taken in float32 and cast afterwards, so that the gradients of a frequent token add up in float32.
        rows = jnp.take(self.embedding[...], tokens, axis=0, mode="fill", fill_value=jnp.nan)
        return shard_activation(rows.astype(self.dtype), "embed")

    def attend(self, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch length vocab"]:
        """Inner products with every token's vector, in float32."""
        return logits(hidden, self.embedding[...].T)


def logits(
    hidden: Float[Array, "batch length embed"], kernel: Float[Array, "embed vocab"]
) -> Float[Array, "batch length vocab"]:
    """`hidden · kernel`: factors in the dtype of `hidden`, sums in float32."""
    product = jnp.einsum("ble,ev->blv", hidden, kernel.astype(hidden.dtype), preferred_element_type=jnp.float32)
    length = "length" if hidden.shape[1] > 1 else None
    return partitioning.shard(product, "batch", length, "vocab")
