"""LoRA (Hu et al. 2021, arXiv:2106.09685) of embedding tables: low-rank updates of the vectors of token ids."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.adapters.lora import LowRankSettings
from t5x_like.errors import UserError
from t5x_like.kernels.contraction import contract
from t5x_like.layers.embeddings import Embedder, Unembedding
from t5x_like.recorded import recorded


class LowRankRows(nnx.Module):
    """Adds scale · A B to an embedding table.

    Args:
      embedder: The table.
      rank: Number of columns of A.
      scale: Factor of the update.
      tied_logits: Whether logits that are computed from the table have the update as well.
      key: Random key for the initial values.

    Attributes:
      down: A, float32 `[ids, rank]`; initially 0, as in loralib.
      up: B, float32 `[rank, embed]`; initially from a standard normal distribution, as in loralib.
    """

    def __init__(self, embedder: Embedder, rank: int, scale: float, *, tied_logits: bool, key: jax.Array):
        (ids, width), (axis, embed) = embedder.embedding.shape, embedder.embedding.get_metadata()["axes"]
        self.down = nnx.Param(jnp.zeros((ids, rank), jnp.float32), axes=(axis, None))
        self.up = nnx.Param(jax.random.normal(key, (rank, width), jnp.float32), axes=(None, embed))
        self.scale, self.tied_logits = scale, tied_logits

    def __call__(self, ids: Int[Array, "batch length"], embedder: Embedder) -> Float[Array, "batch length embed"]:
        """Returns the vectors of ids with the update; see `layers.embeddings.Embedder`."""
        low = jnp.take(self.down[...], ids, axis=0, mode="fill", fill_value=jnp.nan)
        return embedder.lookup(ids) + self.scale * contract(low, self.up[...], 1)

    def attend(self, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch length vocab"] | float:
        """Returns what the update adds to the inner products of `hidden` and all vectors, in float32."""
        if not self.tied_logits:
            return 0.0
        low = contract(hidden, self.up[...].T.astype(hidden.dtype), 1)
        return self.scale * contract(low, self.down[...].T.astype(hidden.dtype), 1, result_dtype=jnp.float32)

    def merged(self, module: Embedder) -> dict[str, Float[Array, "..."]]:
        """Returns the table with the update; see `base.AdapterModule`."""
        update = jnp.matmul(self.down[...], self.up[...], precision=jax.lax.Precision.HIGHEST)
        return {"embedding": module.table + self.scale * update}


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingLoRA(LowRankSettings):
    """Low-rank updates of embedding tables. Freeze all other parameters: `adapters/lora_embeddings.gin` does so.

    A comment above each field documents it.
    """

    target = Embedder
    # Regular expression of the names of the tables, such as embeddings/token_embedder. The default matches token
    # embeddings.
    pattern: str = r"(^|/)token_embedder$"
    # Whether logits of tied embeddings have the update as well, as with peft's `ensure_weight_tying`. Without it, they
    # are computed from the table alone, as peft does by default, and a decoder with tied embeddings cannot be merged.
    tied_logits: bool = False

    def check_merge(self, model: nnx.Module) -> None:
        """Checks that a table has the effect of the update in a model; see `base.Adapter`.

        Raises:
          UserError: The logits of a decoder are computed from the table without the update.
        """
        is_tied = not any(isinstance(module, Unembedding) for _, module in nnx.iter_modules(model))
        if is_tied and not self.tied_logits and "decoder" in model.config.stacks:
            raise UserError(
                "EmbeddingLoRA.tied_logits=False: the logits are computed from the embeddings without the update, so "
                "no table has the effect of the adapter. Train with tied_logits=True, or use the run itself."
            )

    def make(self, embedder: Embedder, key: jax.Array, name: str) -> LowRankRows:
        """Makes the update of a table; see `base.Adapter`."""
        del name
        return LowRankRows(embedder, self.rank, self.scale, tied_logits=self.tied_logits, key=key)
