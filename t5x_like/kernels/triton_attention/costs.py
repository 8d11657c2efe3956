"""Costs of the kernels, which `t5x_like plan` reads from the compiled program.

Tiles that are skipped are not counted. Arrays are read and written once: the blocks that several programs read are in
the L2 cache.
"""

import dataclasses

from jax.experimental import pallas as pl

from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import Inputs

# Instructions per score in addition to those of a kernel, in the PTX of its loop for compute capability 9.0: of
# conditions of a mask, dropout and a softcap. A bias has four, and takes the time of forty on an H200: a tile waits for
# the values that it reads.
BIAS, MASK, DROPOUT, SOFTCAP = 40, 2.5, 12, 20
_FLOAT32 = 4  # bytes


@dataclasses.dataclass(frozen=True)
class Work:
    """What a kernel computes and reads.

    Attributes:
      products: Products per tile.
      instructions: Instructions per score without bias, mask, dropout and softcap, counted as `BIAS` is.
      queries: Number of arrays with the shape of the queries that it reads or writes.
      keys: Number of arrays with the shape of the keys.
      statistics: float32 numbers per query and head.
    """

    products: int
    instructions: float
    queries: int
    keys: int
    statistics: int


FORWARD = Work(products=2, instructions=10, queries=2, keys=2, statistics=1)
OF_KEYS = Work(products=4, instructions=12, queries=2, keys=4, statistics=2)
OF_QUERIES = Work(products=3, instructions=9, queries=3, keys=2, statistics=2)
OF_BIAS = Work(products=2, instructions=13, queries=2, keys=2, statistics=2)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of a call.

    Attributes:
      flops: FLOPs of its products.
      exponentials: Exponentials.
      operations: Other instructions per element.
      bytes: Bytes of memory that it reads and writes.
    """

    flops: int
    exponentials: int
    operations: int
    bytes: int

    @property
    def estimate(self) -> pl.CostEstimate:
        """The cost as an argument of `pl.pallas_call`, which the lowering to Triton drops."""
        return pl.CostEstimate(self.flops, self.exponentials, self.bytes)

    @property
    def metadata(self) -> dict[str, str]:
        """The cost as metadata, which the compiled program has."""
        return {"cost": " ".join(f"{name}={number}" for name, number in dataclasses.asdict(self).items())}


def of(work: Work, g: Geometry, inputs: Inputs, *, further_bytes: int = 0) -> Cost:
    """Returns the cost of a call.

    Args:
      work: The kernel.
      g: Sizes of the problem and of tiles.
      inputs: The arrays of a device.
      further_bytes: Bytes that it writes besides.
    """
    scores = g.batch * g.heads * g.pairs * g.block_q * g.block_k
    masked = g.causal or g.segments or g.ranks or g.window is not None
    instructions = work.instructions + BIAS * g.biased + MASK * masked
    instructions += DROPOUT * (g.dropout_rate > 0) + SOFTCAP * (g.softcap is not None)
    arrays = inputs.q.dtype.itemsize * (work.queries * inputs.q.size + work.keys * inputs.k.size)
    return Cost(
        flops=work.products * 2 * scores * g.head_dim,
        exponentials=scores,
        operations=round(scores * instructions),
        bytes=arrays + _FLOAT32 * work.statistics * g.batch * g.heads * g.q_len + further_bytes,
    )
