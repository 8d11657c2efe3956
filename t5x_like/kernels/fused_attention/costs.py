"""Costs of the kernels, which XLA's scheduler and `t5x_like plan` read from the compiled program.

What skipped blocks do not compute is not counted; blocks without a common segment are counted, unless a plan says how
many segments a row has (`segment_blocks.expected`). Segments and prefixes, a few bytes per position, are not counted
either. Elementwise work other than exponentials counts as a number of exponentials that takes as long.
"""

from jax.experimental import pallas as pl

from t5x_like.kernels.fused_attention.geometry import LANES, Geometry, ListGeometry
from t5x_like.kernels.fused_attention.segment_blocks import expected_pairs

# Elementwise work of a bias and of dropout as a fraction of the work of an exponential, in the forward and in the
# backward pass: from the compiler's schedules for v5p and v6e.
BIAS_WORK, DROPOUT_WORK = (0.4, 1.1), (0.5, 0.9)
# The same of a softcap, whose hyperbolic tangents mostly fit beside the products of heads of 128 and 256: from the
# schedules for v5e, v5p and v6e.
SOFTCAP_WORK = (0.1, 0.35)
# The same of a table of distances, whose products are rotated by one column per row, and for queries also transposed:
# from the schedules for v5e.
QUERY_TABLE_WORK, KEY_TABLE_WORK = (1.2, 2.2), (0.6, 1.0)
# All work of lists of blocks beyond its products at the peak rate. A block of 64 queries loads new keys into the matrix
# units for few rows, and all arrays are transposed: from the schedules for v5e, v5p and v6e.
LIST_WORK = (3.0, 4.4)
# Matrix products per tile: scores and output, and scores, and gradients of weights, values, keys and queries.
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5
# Products with a table of distances: the scores, and the gradients of the table and of queries or keys.
TABLE_PRODUCTS = 1, 3
_FLOAT32 = 4  # bytes


def forward(geometry: Geometry, itemsize: int) -> pl.CostEstimate:
    """Returns the cost of the forward pass.

    Queries are read and the output is written once; keys and values are read for each block of queries that sees them.

    Args:
      geometry: Sizes.
      itemsize: Bytes per number of the activations.
    """
    g = geometry
    reads = 1 if g.k_blocks == 1 else expected_pairs(g) / g.k_blocks
    arrays = itemsize * (2 * _queries(g) + 2 * reads * _keys(g))
    arrays += itemsize * _tables(g)
    return _estimate(g, 0, FORWARD_PRODUCTS, arrays + _FLOAT32 * (_statistics(g) + _biases(g)))


def backward(geometry: Geometry, itemsize: int) -> pl.CostEstimate:
    """Returns the cost of the backward pass.

    Queries, gradients of the output and statistics are read for each block of keys that they see. Keys, values and
    their gradients move once per chunk of queries, and gradients of queries once.

    Args:
      geometry: Sizes.
      itemsize: Bytes per number of the activations.
    """
    g = geometry
    reads = 1 if g.q_blocks == 1 else expected_pairs(g) / g.q_blocks
    sums = itemsize if g.q_chunks == 1 else _FLOAT32
    arrays = itemsize * (2 * reads + 1) * _queries(g) + (itemsize + sums) * 2 * g.q_chunks * _keys(g)
    arrays += itemsize * _tables(g)
    others = 2 * reads * _statistics(g) + _biases(g) * (1 + g.batch) + _tables(g)
    return _estimate(g, 1, BACKWARD_PRODUCTS, arrays + _FLOAT32 * others)


def _estimate(g: Geometry, backward: int, products: int, bytes_accessed: float) -> pl.CostEstimate:
    scores = g.batch * g.heads * expected_pairs(g) * g.block_q * g.block_k
    others = g.biased * BIAS_WORK[backward] + (g.dropout_rate > 0) * DROPOUT_WORK[backward]
    others += (g.softcap is not None) * SOFTCAP_WORK[backward]
    others += g.query_table * QUERY_TABLE_WORK[backward] + g.key_table * KEY_TABLE_WORK[backward]
    # A block of 128 queries or keys is also multiplied with the vectors of 128 distances to other positions.
    ranges = g.query_table * (1 + LANES / g.block_k) + g.key_table * (1 + LANES / g.block_q)
    products += TABLE_PRODUCTS[backward] * ranges
    return pl.CostEstimate(
        flops=round(products * 2 * scores * g.head_dim),
        transcendentals=round(scores * (1 + others)),
        bytes_accessed=round(bytes_accessed),
    )


def _queries(g: Geometry) -> int:
    return g.batch * g.padded_q * g.heads * g.head_dim


def _keys(g: Geometry) -> int:
    return g.batch * g.padded_k * g.kv_heads * g.head_dim


def _statistics(g: Geometry) -> int:
    return g.batch * g.heads * g.padded_q


def _biases(g: Geometry) -> int:
    return g.heads * g.distances if g.biased else 0


def _tables(g: Geometry) -> int:
    return (g.query_table + g.key_table) * g.heads * g.head_dim * g.distances


def of_lists(geometry: ListGeometry, itemsize: int, *, backward: bool) -> pl.CostEstimate:
    """Returns the cost of lists of blocks. All arrays are read or written once.

    Args:
      geometry: Sizes.
      itemsize: Bytes per number of the activations.
      backward: Whether the cost is of the backward pass.
    """
    g = geometry
    scores = g.batch * g.heads * g.pairs * g.size**2
    positions = g.batch * g.heads * g.padded
    arrays, statistics = (7, 2) if backward else (4, 1)
    others = LIST_WORK[backward] + (g.dropout_rate > 0) * DROPOUT_WORK[backward]
    return pl.CostEstimate(
        flops=(BACKWARD_PRODUCTS if backward else FORWARD_PRODUCTS) * 2 * scores * g.head_dim,
        transcendentals=round(scores * others),
        bytes_accessed=positions * (arrays * itemsize * g.head_dim + statistics * _FLOAT32),
    )
