"""LoRA (Hu et al. 2021, arXiv:2106.09685): low-rank updates of frozen projections."""

import dataclasses
import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.kernels.contraction import contract
from t5x_like.kernels.dropout import Dropout
from t5x_like.layers.projections import Projection
from t5x_like.recorded import recorded


class LowRank(nnx.Module):
    """Adds scale · B A x to the output of a projection.

    Args:
      projection: The projection.
      rank: Number of rows of A.
      scale: Factor of the update.
      dropout: Dropout of the input of the update, as in loralib.
      stream: Number of the random keys of this projection among those derived from the key of its block.
      key: Random key for the initial values.

    Attributes:
      down: A, float32 `[*inputs, rank]`; initially uniform in ±1/√inputs, as in loralib.
      up: B, float32 `[rank, *outputs]`; initially 0.
    """

    def __init__(
        self, projection: Projection, rank: int, scale: float, *, dropout: Dropout, stream: int, key: jax.Array
    ):
        shape, count, axes = projection.kernel.shape, projection.num_inputs, projection.axes
        bound = 1 / math.sqrt(math.prod(shape[:count]))
        down = jax.random.uniform(key, (*shape[:count], rank), jnp.float32, -bound, bound)
        self.down = nnx.Param(down, axes=(*axes[:count], None))
        self.up = nnx.Param(jnp.zeros((rank, *shape[count:]), jnp.float32), axes=(None, *axes[count:]))
        self.num_inputs, self.scale, self.dropout, self.stream = count, scale, dropout, stream

    def __call__(
        self, x: Float[Array, "batch length ..."], projection: Projection, *, dropout_key: jax.Array | None = None
    ) -> Float[Array, "batch length ..."]:
        """Returns the output of the projection with the update; see `base.ProjectionAdapter`."""
        y = projection.product(x)
        return y + self.update(x, y.dtype, dropout_key)

    def update(
        self, x: Float[Array, "batch length ..."], dtype: jax.typing.DTypeLike, dropout_key: jax.Array | None
    ) -> Float[Array, "batch length ..."]:
        """Returns scale · B A x, computed in a dtype."""
        if dropout_key is not None:
            x = self.dropout(x, jax.random.fold_in(dropout_key, self.stream))
        low = contract(x.astype(dtype), self.down[...].astype(dtype), self.num_inputs)
        return self.scale * contract(low, self.up[...].astype(dtype), 1)

    def delta(self) -> Float[Array, "..."]:
        """Returns scale · A B, `[*inputs, *outputs]` in float32."""
        return self.scale * jnp.tensordot(self.down[...], self.up[...], axes=1, precision=jax.lax.Precision.HIGHEST)

    def merged(self, module: Projection) -> dict[str, Float[Array, "..."]]:
        """Returns the kernel with the update; see `base.AdapterModule`."""
        return {"kernel": module.dense_kernel + self.delta()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRankSettings:
    """The rank and the scale of low-rank updates. A comment above each field documents it."""

    # Rank r of an update.
    rank: int = 8
    # α: an update is multiplied by α / r, or by α / √r with `rank_stabilized`.
    alpha: float = 16.0
    # Whether to scale as rsLoRA (Kalajdzievski 2023, arXiv:2312.03732).
    rank_stabilized: bool = False

    def __post_init__(self):
        if self.rank < 1 or not self.alpha > 0:
            name = type(self).__name__
            raise UserError(f"{name}: rank={self.rank}, alpha={self.alpha}: not positive. Give positive numbers.")

    @property
    def scale(self) -> float:
        """Factor of an update."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilized else self.rank)


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class LoRA(LowRankSettings):
    """Low-rank updates of some projections. Freeze all other parameters: `adapters/lora.gin` does so.

    A comment above each field documents it.
    """

    target = Projection
    # Regular expression of the names of the projections, such as encoder/layers/attention/query. The default matches
    # the query and value projections of all attention blocks, as in the paper.
    pattern: str = r"attention/(query|value)$"
    # Dropout rate of the input of an update, as in loralib. Projections of logits, and of the embeddings of MobileBERT
    # and of models that read characters, have no dropout: give them an adapter of their own with rate 0.
    dropout_rate: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.dropout_rate < 1:
            raise UserError(f"LoRA.dropout_rate={self.dropout_rate}: not in [0, 1). Give 0 for no dropout.")

    def make(self, projection: Projection, key: jax.Array, name: str) -> LowRank:
        """Makes the update of a projection; see `base.Adapter`."""
        return LowRank(projection, **self.settings(projection, name), key=key)

    def settings(self, projection: Projection, name: str) -> dict[str, Any]:
        """Checks that the update fits a projection, and returns arguments of `LowRank`."""
        if self.dropout_rate and not projection.has_dropout_key:
            raise UserError(
                f"LoRA.dropout_rate={self.dropout_rate}: {name}, which LoRA.pattern={self.pattern!r} matches, has no "
                "dropout. Change the pattern, and give this projection an adapter of its own with dropout_rate=0."
            )
        dropout, stream = Dropout(self.dropout_rate), zlib.crc32(name.encode())
        return {"rank": self.rank, "scale": self.scale, "dropout": dropout, "stream": stream}
