"""Sizes of blocks and memory limits per TPU generation."""

import dataclasses

from jax.experimental import pallas as pl
from jax.sharding import Mesh
from jaxtyping import Array, Float

from t5x_like.kernels.fused_attention.geometry import LANES, Geometry, table_size
from t5x_like.kernels.score_bias import ScoreTerms

MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much a step of the kernels computes.

    Attributes:
      block_q: Largest number of queries of a step.
      block_k: Largest number of keys of a step.
      vmem_bytes: Vector memory of the core that a kernel may use.
      strided: Whether the core can rotate each row of a register by another number of columns.
    """

    block_q: int
    block_k: int
    vmem_bytes: int
    strided: bool = True


# A tile of 512 x 512 scores in float32 takes 1 MiB, of which a step holds several. It is large enough that reading its
# queries and keys takes less time than its products, and small enough that a causal mask skips blocks from rows of
# 1,024 positions on. The memory is half of the core's, because XLA keeps other arrays there between operations.
DEFAULT = Sizes(512, 512, 32 * MIB)  # v5p and TPU7x have 64 MiB per core
SIZES = {
    # 16 MiB per core, all of which a kernel may use, hold fewer scores.
    "TPU v4": Sizes(256, 512, 16 * MIB, strided=False),
    # 128 MiB per core.
    "TPU v5 lite": Sizes(512, 512, 64 * MIB),
    "TPU v6 lite": Sizes(512, 512, 64 * MIB),
}
# Share of the memory for the gradients of the queries, which the backward pass holds for many blocks, and for tables of
# distances with their gradients.
_GRADIENTS_SHARE, _TABLES_SHARE = 2, 2
# Memory for queries and tiles beside a row of keys and values: more than the compiler needs on v4 and v5p.
_BESIDE_ROW = 4 * MIB
_FLOAT32 = 4  # bytes


def sizes(mesh: Mesh | None) -> Sizes:
    """Returns the sizes for the devices of a mesh."""
    return DEFAULT if mesh is None else SIZES.get(mesh.devices.flat[0].device_kind, DEFAULT)


def block_size(length: int, largest: int) -> int:
    """Returns the size of equal blocks that cover a length with the fewest blocks, a multiple of 128.

    Args:
      length: Number of positions.
      largest: Largest block.
    """
    return pl.cdiv(pl.cdiv(length, pl.cdiv(length, largest)), LANES) * LANES


def within(sizes: Sizes, window: int | None) -> Sizes:
    """Returns sizes whose blocks are at most as large as a window, since larger ones have more keys outside of it."""
    largest = sizes.block_q + sizes.block_k if window is None else max(window // LANES, 1) * LANES
    return dataclasses.replace(sizes, block_q=min(sizes.block_q, largest), block_k=min(sizes.block_k, largest))


def q_chunks(geometry: Geometry, itemsize: int, sizes: Sizes) -> int:
    """Returns the number of chunks of queries whose gradients fit into the memory of the core.

    A chunk holds a float32 sum and two buffers of the result.

    Args:
      geometry: Sizes of the problem.
      itemsize: Bytes per number of the activations.
      sizes: Memory of the core.
    """
    g = geometry
    block_bytes = g.block_q * g.step_heads * g.head_dim * (4 + 2 * itemsize)
    fitting = max(1, sizes.vmem_bytes // _GRADIENTS_SHARE // block_bytes)
    return next(n for n in range(pl.cdiv(g.q_blocks, fitting), g.q_blocks + 1) if g.q_blocks % n == 0)


def tables_fit(
    terms: ScoreTerms,
    q: Float[Array, "batch q_len heads kv"],
    k: Float[Array, "batch kv_len kv_heads kv"],
    sizes: Sizes,
    window: int | None = None,
) -> bool:
    """Returns whether the tables of a bias fit into the memory of the core, which holds all distances of a step.

    There are two buffers of each table and of its float32 gradient.

    Args:
      terms: Terms of the bias.
      q: Queries.
      k: Keys.
      sizes: Memory of the core.
      window: See `Mask`.
    """
    sizes = within(sizes, window)
    (_, q_len, heads, head_dim), (kv_len, kv_heads) = q.shape, k.shape[1:3]
    group = heads // kv_heads
    features = head_dim * (2 if group == 1 else group)
    block_q, block_k = block_size(q_len, sizes.block_q), block_size(kv_len, sizes.block_k)
    relative = sum(
        table_size(pl.cdiv(length, size) * size, block_q + block_k, window)
        for length, size in ((q_len, block_q), (kv_len, block_k))
    )
    tables = (terms.query_table is not None) + (terms.key_table is not None)
    held = tables * 2 * (q.dtype.itemsize + 4) * features * relative
    return held <= sizes.vmem_bytes // _TABLES_SHARE


def row_fits(length: int, head_dim: int, itemsize: int, sizes: Sizes) -> bool:
    """Returns whether the keys and values of a row of a head fit into the memory of the core.

    The backward pass holds two buffers of keys, values and their gradients, one copy of keys and values by positions,
    and a float32 sum.

    Args:
      length: Positions of the row.
      head_dim: Size of a head.
      itemsize: Bytes per number of the activations.
      sizes: Memory of the core.
    """
    held = 2 * head_dim * length * ((2 * 2 + 1) * itemsize + _FLOAT32)
    return held + _BESIDE_ROW <= sizes.vmem_bytes
