"""Embeddings of tokens, positions and token types, and logits from tied embeddings."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.kernels.contraction import contract
from t5x_like.layers.initializers import Initializer, normal
from t5x_like.layers.projections import Projection, shard_residual

STANDARD_NORMAL = normal(1.0)


class Embedder(nnx.Module):
    """A table with one vector per id.

    Args:
      num_embeddings: Number of ids.
      embed_dim: Size of the vectors.
      key: Random key for the initial values.
      axis: Logical axis of the ids: `vocab`, `positions` or `token_types`.
      features: Logical axis of the features: `embed`, or `vector` of static word vectors.
      init: Initializer of the table.
      dtype: Dtype of the activations.

    Attributes:
      embedding: float32 `[ids, embed]`.
      adapter: Further rows or an update, or None; see `adapters.prompt` and `adapters.lora_embedding`.
      quantization: None, or a module that computes `lookup` and `table`; see `adapters.quantization`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embed_dim: int,
        *,
        key: jax.Array,
        axis: str = "vocab",
        features: str = "embed",
        init: Initializer = STANDARD_NORMAL,
        dtype: str = "float32",
    ):
        self.embedding = nnx.Param(init(key, (num_embeddings, embed_dim), 1), axes=(axis, features))
        self.dtype = dtype
        self.adapter: nnx.Module | None = None
        self.quantization: nnx.Module | None = None

    def __call__(self, ids: Int[Array, "batch length"]) -> Float[Array, "batch length embed"]:
        """Returns the vectors of the ids. Ids outside the table give NaN, which makes the error visible in the loss."""
        vectors = self.lookup(ids) if self.adapter is None else self.adapter(ids, self)
        # The lookup is in float32 and the cast comes after it, so that the gradients of an id are summed in float32.
        return shard_residual(vectors.astype(self.dtype))

    def lookup(self, ids: Int[Array, "batch length"]) -> Float[Array, "batch length embed"]:
        """Returns the vectors of the ids without the adapter and before the cast; see `__call__`."""
        if self.quantization is not None:
            return self.quantization.lookup(ids, self)
        return jnp.take(self.embedding[...], ids, axis=0, mode="fill", fill_value=jnp.nan)

    @property
    def table(self) -> Float[Array, "ids embed"]:
        """The table, or the table that its quantization stands for."""
        return self.embedding[...] if self.quantization is None else self.quantization.weight(self)

    def attend(self, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch length vocab"]:
        """Returns the float32 inner products of `hidden` and the vectors of all ids."""
        products = logits(hidden, self.table.T)
        return products if self.adapter is None else products + self.adapter.attend(hidden)


def logits(
    hidden: Float[Array, "batch length embed"], kernel: Float[Array, "embed vocab"]
) -> Float[Array, "batch length vocab"]:
    """Computes logits with products in the dtype of `hidden` and accumulation in float32.

    Args:
      hidden: Hidden states.
      kernel: Unembedding kernel.

    Returns:
      Logits in float32.
    """
    product = contract(hidden, kernel.astype(hidden.dtype), 1, result_dtype=jnp.float32)
    length = "length" if hidden.shape[1] > 1 else None
    return partitioning.shard(product, "batch", length, "vocab")


class Unembedding(Projection):
    """The projection of hidden states to logits of a model whose embeddings are not tied.

    Args:
      embed_dim: Size of the hidden states.
      vocab_size: Number of token ids.
      key: Random key for the initial values.
      init: Initializer of the kernel.
      bias: Whether a bias is added.
    """

    def __init__(self, embed_dim: int, vocab_size: int, *, key: jax.Array, init: Initializer, bias: bool = False):
        axes = ("embed", "vocab")
        super().__init__((embed_dim,), (vocab_size,), axes=axes, key=key, init=init, bias=bias, has_dropout_key=False)

    def __call__(self, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch length vocab"]:
        """Returns logits in float32; see `logits`."""
        return self.product(hidden) if self.adapter is None else self.adapter(hidden, self)

    def linear(
        self,
        x: Float[Array, "batch length embed"],
        kernel: Float[Array, "embed vocab"],
        bias: Float[Array, " vocab"] | None,
        *,
        copies: int = 1,
    ) -> Float[Array, "batch length vocab"]:
        """Returns the logits with a given kernel and bias, in float32; see `Projection.linear`."""
        del copies
        y = logits(x, kernel)
        return y if bias is None else y + bias


def position_ids(
    batch: int, length: int, positions: Int[Array, "batch length"] | None = None
) -> Int[Array, "batch length"]:
    """Returns `positions`, or 0, 1, 2 … along each row if `positions` is None."""
    if positions is not None:
        return positions
    return jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
