"""How the kernels are called: sizes of tiles, and costs."""

import contextlib
import dataclasses
from collections.abc import Callable

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.sharding import Mesh
from jaxtyping import Array

from t5x_like import partitioning
from t5x_like.kernels.cudnn_attention import compute_capability
from t5x_like.kernels.fused_attention.operands import Inputs
from t5x_like.kernels.triton_attention.costs import Cost


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much a program of a kernel computes.

    Attributes:
      block_q: Queries of a tile.
      block_k: Keys of a tile.
      warps: Groups of 32 threads.
      stages: Tiles that are in shared memory at a time, while the next ones are read.
    """

    block_q: int
    block_k: int
    warps: int = 4
    stages: int = 2


@dataclasses.dataclass(frozen=True)
class SizesOfPasses:
    """Sizes of the forward pass, and of the gradients of keys and values, of queries, and of biases (squares)."""

    forward: Sizes
    of_keys: Sizes
    of_queries: Sizes
    of_bias: Sizes


# Sizes by the largest head: those with which the compiler keeps the tiles in registers (`ptxas -v`), or nearly so. From
# compute capability 9.0 on, the operands of products are in shared memory.
SMALL, MIDDLE, LARGE = 64, 128, 256
SIZES = {
    SMALL: SizesOfPasses(Sizes(128, 64, 8), Sizes(64, 64), Sizes(64, 64), Sizes(64, 64)),
    MIDDLE: SizesOfPasses(Sizes(128, 64, 8), Sizes(64, 64, 8), Sizes(64, 64), Sizes(64, 64)),
    LARGE: SizesOfPasses(Sizes(64, 64, 8), Sizes(32, 64, 8), Sizes(64, 32, 8), Sizes(64, 64, 8, 1)),
}
AMPERE_SIZES = {
    SMALL: SizesOfPasses(Sizes(128, 32, 8), Sizes(32, 64), Sizes(64, 32), Sizes(64, 64)),
    MIDDLE: SizesOfPasses(Sizes(64, 32), Sizes(32, 64), Sizes(64, 32), Sizes(32, 32)),
    LARGE: SizesOfPasses(Sizes(64, 16), Sizes(32, 32, 4, 1), Sizes(32, 32, 4, 1), Sizes(32, 32, 4, 1)),
}
HOPPER = (9, 0)
# Devices with 228 KiB of shared memory per multiprocessor. Others, such as 8.9 and 12.0, have about 100.
WITH_LARGE_SHARED_MEMORY = (HOPPER, (10, 0))


def sizes_for(mesh: Mesh | None, head_dim: int) -> SizesOfPasses:
    """Returns the sizes for the devices of a mesh and the size of a head."""
    capability = HOPPER if mesh is None else compute_capability(mesh.devices.flat[0])
    by_head = SIZES if capability in WITH_LARGE_SHARED_MEMORY else AMPERE_SIZES
    return next(sizes for largest, sizes in by_head.items() if head_dim <= largest)


def _target() -> contextlib.AbstractContextManager:
    """Lets Triton know the devices of the bound mesh, also on hosts without them; within `jax.shard_map` it does."""
    mesh = partitioning.bound_mesh()
    if mesh is None or not jax.sharding.get_abstract_mesh().empty:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


def call(
    kernel: Callable,
    inputs: Inputs,
    more: tuple[Array, ...],
    out_shape: tuple[jax.ShapeDtypeStruct, ...],
    *,
    grid: tuple[int, ...],
    sizes: Sizes,
    cost: Cost,
    name: str,
    interpret: bool,
) -> list[Array]:
    """Calls `kernel(refs, *more_refs, *result_refs)` in each program of a grid. Programs see whole arrays.

    Args:
      kernel: The kernel; the first argument has the references of `inputs`.
      inputs: Arrays that all kernels read.
      more: Further arrays.
      out_shape: Shapes of the results.
      grid: Numbers of programs.
      sizes: Threads and stages.
      cost: Cost of the call.
      name: Name of the kernel.
      interpret: Whether to interpret the kernel, on any device.

    Returns:
      The results.
    """
    given = [x for x in inputs if x is not None]

    def with_inputs(*refs):
        named = iter(refs)
        kernel(Inputs(*(None if x is None else next(named) for x in inputs)), *named)

    with _target():
        return pl.pallas_call(
            with_inputs,
            grid=grid,
            out_shape=list(out_shape),
            compiler_params=plgpu.CompilerParams(num_warps=sizes.warps, num_stages=sizes.stages),
            interpret=interpret,
            name=name,
            cost_estimate=cost.estimate,
            metadata=cost.metadata,
        )(*given, *more)
