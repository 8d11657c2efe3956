"""How the kernels are laid out over a mesh: XLA does not partition a Pallas call, so each device calls its own."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int

from t5x_like import partitioning
from t5x_like.kernels.fused_attention.geometry import Geometry
from t5x_like.kernels.fused_attention.operands import Inputs
from t5x_like.kernels.head_exchange import heads_axis


@dataclasses.dataclass(frozen=True)
class Layout:
    """Partition specs of the inputs and results. Rows and heads are sharded; lengths are not.

    Attributes:
      partitioner: The bound partitioner; None on a single device.
      inputs: Specs of the inputs.
      heads: Spec of queries and outputs.
      statistics: Spec of `[batch, heads, 1, q_len]`.
      num_heads: Number of query heads of all devices.
    """

    partitioner: partitioning.Partitioner | None
    inputs: Inputs
    heads: P
    statistics: P
    num_heads: int

    @classmethod
    def of(cls, inputs: Inputs) -> "Layout":
        """Returns the layout of the global inputs under the bound partitioner."""
        partitioner = partitioning.bound_partitioner()
        rows = heads = None
        if partitioner is not None and partitioner.mesh.size > 1:
            axis = heads_axis(inputs.q.shape, inputs.k.shape)
            rows, _, heads, _ = partitioner.spec(("batch", None, axis, None), inputs.q.shape, "queries")
        else:
            partitioner = None
        by_heads, by_rows = P(rows, None, heads, None), P(rows, None)
        keys = (by_heads, by_heads, by_rows, by_rows)
        table, vector = P(None, None, heads, None), P(heads, None)
        of_terms = (table, table, P(rows), vector, vector, P(rows, heads, None), *(by_rows,) * 4)
        lists = P(heads, None, None)
        specs = Inputs(by_heads, by_heads, by_heads, vector, by_rows, by_rows, by_rows, P(), *keys, *of_terms, lists)
        given = Inputs(*(None if x is None else spec for x, spec in zip(inputs, specs, strict=True)))
        return cls(partitioner, given, by_heads, P(rows, heads, None, None), inputs.q.shape[2])

    def map(self, function: Callable, in_specs, out_specs) -> Callable:
        """Returns `function` called on each device with its own part of the arguments."""
        if self.partitioner is None:
            return function
        # Results of Pallas calls have no type that says over which axes they vary, so it is not checked.
        return jax.shard_map(
            function, mesh=self.partitioner.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )

    def seeds(self, inputs: Inputs, geometry: Geometry) -> Int[Array, " 5"] | None:
        """Returns `Operands.seeds` of this device, None without dropout."""
        if inputs.seeds is None:
            return None
        rows, _, heads, _ = self.heads
        first = [_shard(rows) * geometry.batch, _shard(heads) * geometry.heads]
        return jnp.concatenate([inputs.seeds, jnp.stack(first), jnp.full(1, self.num_heads, jnp.int32)])

    def sum_over_rows(self, x: Array) -> Array:
        """Sums over the devices that hold different rows.

        Without the barrier, the compiler makes a later conversion to bfloat16 a part of the sum, and fails for v5p,
        whose SparseCores compute it (libtpu 0.0.42).
        """
        return x if self.heads[0] is None else jax.lax.optimization_barrier(jax.lax.psum(x, self.heads[0]))


def _shard(axes):
    return jnp.int32(0) if axes is None else jax.lax.axis_index(axes).astype(jnp.int32)
