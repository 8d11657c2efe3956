"""Lists of blocks of keys, which differ per head (BigBird, Zaheer et al. 2020, section 2), in a kernel.

The keys and values of a row and a head are on the core at once. Each block of queries is multiplied with its listed
blocks of keys, so HBM has neither gathered keys nor scores. Blocks of queries that see all keys visit them in groups as
long as a list. A block that occurs twice in a list counts twice.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.kernels.fused_attention import block_list_kernels, blocks
from t5x_like.kernels.fused_attention.block_list_kernels import ListOperands
from t5x_like.kernels.fused_attention.geometry import ListGeometry
from t5x_like.kernels.fused_attention.layout import Layout
from t5x_like.kernels.fused_attention.operands import NO_SEGMENT, Inputs, inner_products, joined, pad, separated
from t5x_like.kernels.fused_attention.problem import segments
from t5x_like.kernels.fused_outputs import FUSED_LOG_SUM_EXP, FUSED_OUTPUT
from t5x_like.kernels.scoring import Scoring

# Largest number of queries of a step.
_LARGEST_CHUNK = 512


def block_list_attention(
    q: Float[Array, "batch length heads kv"],
    k: Float[Array, "batch length heads kv"],
    v: Float[Array, "batch length heads kv"],
    scoring: Scoring,
    *,
    interpret: bool = False,
    sizes: blocks.Sizes | None = None,
) -> Float[Array, "batch length heads kv"]:
    """Computes `kernels.attention.attention` with a mask of lists of blocks, without scores in memory.

    The result equals the reference up to rounding, with two exceptions. Queries that see no key get zeros. Dropout has
    the same distribution and other random bits; each occurrence of a key in a list has its own decision.

    Args:
      q: Queries.
      k: Keys.
      v: Values.
      scoring: A mask of `blocks`, with or without segments and invalid keys, and dropout without shared decisions.
      interpret: Whether to interpret the kernels, on any device.
      sizes: Memory of the core; by default the bound mesh's devices decide.

    Returns:
      Averages of the values.
    """
    mask, rate = scoring.mask, scoring.dropout_rate
    batch, length, heads, _ = q.shape
    listed = mask.blocks
    listed.check(length)
    queries, keys = segments(mask, q.shape, length)
    if keys is None:
        queries = keys = jnp.zeros((batch, length), jnp.int32)
    inputs = Inputs(
        q=q,
        k=k,
        v=v,
        query_segments=queries,
        key_segments=keys,
        seeds=jax.lax.bitcast_convert_type(jax.random.bits(scoring.dropout_key, (2,)), jnp.int32) if rate else None,
        block_lists=jnp.broadcast_to(listed.keys, (heads, *listed.keys.shape[1:])),
    )
    static = Static(
        size=listed.size,
        all_keys=tuple(sorted(set(listed.all_keys))),
        scale=scoring.scale,
        dropout_rate=rate,
        vmem_bytes=(sizes or blocks.sizes(partitioning.bound_mesh())).vmem_bytes,
        interpret=interpret,
    )
    return _attention(inputs, static)


@dataclasses.dataclass(frozen=True)
class Static:
    """What the compiled kernels depend on besides shapes.

    Attributes:
      size, all_keys: See `BlockLists`.
      scale: Factor of the scores.
      dropout_rate: Rate of the dropout of each attention weight.
      vmem_bytes: Vector memory of the core that a kernel may use.
      interpret: Whether to interpret the kernels.
    """

    size: int
    all_keys: tuple[int, ...]
    scale: float
    dropout_rate: float
    vmem_bytes: int
    interpret: bool

    def geometry(self, inputs: Inputs) -> ListGeometry:
        """Returns the sizes for the inputs of one device."""
        batch, length, heads, head_dim = inputs.q.shape
        return ListGeometry(
            batch=batch,
            length=length,
            heads=heads,
            head_dim=head_dim,
            size=self.size,
            listed=inputs.block_lists.shape[2],
            chunk=blocks.block_size(length, _LARGEST_CHUNK),
            all_keys=self.all_keys,
            scale=self.scale,
            dropout_rate=self.dropout_rate,
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _attention(inputs: Inputs, static: Static):
    return _forward(inputs, static)[0]


def _forward(inputs: Inputs, static: Static):
    layout = Layout.of(inputs)

    def local(inputs):
        operands, g = _operands(inputs, layout, static)
        options = {"vmem_bytes": static.vmem_bytes, "interpret": static.interpret}
        output, lse = block_list_kernels.forward(operands, g, **options)
        return separated(output, inputs.q.shape), lse[..., : g.length]

    output, lse = layout.map(local, (layout.inputs,), (layout.heads, layout.statistics))(inputs)
    output, lse = checkpoint_name(output, FUSED_OUTPUT), checkpoint_name(lse, FUSED_LOG_SUM_EXP)
    return output, (inputs, output, lse)


def _backward(static: Static, residuals, gradient):
    inputs, output, lse = residuals
    layout = Layout.of(inputs)

    def local(inputs, output, lse, gradient):
        operands, g = _operands(inputs, layout, static)
        delta = inner_products(output, gradient)[:, :, None]
        statistics = (pad(x, 3, g.padded) for x in (lse, delta))
        options = {"vmem_bytes": static.vmem_bytes, "interpret": static.interpret}
        found = block_list_kernels.backward(operands, *statistics, joined(gradient, g.padded), g, **options)
        return Inputs(*(separated(x, inputs.q.shape) for x in found))

    arguments = (layout.inputs, layout.heads, layout.statistics, layout.heads)
    results = Inputs(*layout.inputs[:3])
    return (layout.map(local, arguments, results)(inputs, output, lse, gradient),)


_attention.defvjp(_forward, _backward)


def _operands(inputs: Inputs, layout: Layout, static: Static) -> tuple[ListOperands, ListGeometry]:
    """Returns the operands of the kernels on one device, and their sizes."""
    g = static.geometry(inputs)
    return ListOperands(
        lists=_lists(inputs.block_lists, g),
        q=joined(inputs.q, g.padded),
        k=joined(inputs.k, g.padded),
        v=joined(inputs.v, g.padded),
        query_segments=pad(inputs.query_segments, 1, g.padded)[:, None],
        key_segments=pad(inputs.key_segments, 1, g.padded, NO_SEGMENT).reshape(g.batch, g.num_blocks, g.size),
        seeds=layout.seeds(inputs, g),
    ), g


def _lists(lists: Int[Array, "heads query_blocks listed"], g: ListGeometry) -> Int[Array, "heads chunks 1 entries"]:
    """Returns the lists of each chunk of queries, empty for blocks that see all keys and for those after the row."""
    given = -(-g.length // g.size)
    lists = pad(lists[:, :given].astype(jnp.int32), 1, g.num_blocks, -1)
    if g.all_keys:
        lists = lists.at[:, list(g.all_keys)].set(-1)
    return lists.reshape(g.heads, g.num_chunks, 1, -1)
