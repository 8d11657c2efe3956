"""Compiling a program's step for devices that are not here, and what the compiler says of its memory."""

import contextlib
import dataclasses
import re
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding

from t5x_like import optimizers, parameters
from t5x_like.planning import collectives, hlo, walk
from t5x_like.training.program import Program

_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of HBM on one device.

    Attributes:
      parameters: weights, frozen ones too.
      optimizer: the optimizer's state and the counters.
      batch: the features of one batch.
      temporaries: gradients, activations and what else a step holds in between; with the program itself. Where the step
        does not fit, the compiler tells only what it asked for in all, and this is the rest of it.
      peak: what a step needs altogether.
    """

    parameters: float
    optimizer: float
    batch: float
    temporaries: float
    peak: float


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A step as the compiler made it.

    Attributes:
      memory: what it holds.
      fits: whether that is no more than the devices have.
      work: what a device does; None where it does not fit, since the compiler then gives no program.
      seconds: that lowering and compiling took on this host.
    """

    memory: Memory
    fits: bool
    work: walk.Work | None
    seconds: float


def compile_step(program: Program, hbm_bytes: int) -> CompiledStep:
    """Lowers and compiles the train step of a program, without making any array.

    Args:
      program: what the loop would run.
      hbm_bytes: what a device has.
    """
    started = time.monotonic()
    state, frozen = _placed(program.shapes, program.shardings)
    batch = _batch(program)
    weights = _bytes_a_device(optimizers.merge(state.params, frozen))
    others = _bytes_a_device(state.replace(params=()))
    rows = _bytes_a_device(batch)
    try:
        with _no_cache():
            compiled = program.train_step.lower(state, frozen, batch).compile()
    except jax.errors.JaxRuntimeError as error:
        peak = required_memory(str(error))
        if peak is None:
            raise
        memory = Memory(weights, others, rows, max(0.0, peak - weights - others - rows), peak)
        return CompiledStep(memory, False, None, time.monotonic() - started)
    peak = peak_memory(compiled.memory_analysis())
    memory = Memory(weights, others, rows, peak - weights - others - rows, peak)
    done = walk.work(hlo.parse(compiled.as_text()), _mesh(program))
    return CompiledStep(memory, peak <= hbm_bytes, done, time.monotonic() - started)


def peak_memory(stats: Any) -> float:
    """The HBM that a compiled program holds at its fullest, itself included, from `memory_analysis()`.

    `temp_size_in_bytes` adds up temporaries that are never there together (up to half more than there is of them), so
    the compiler's own account of what it allocates counts; older versions give its peak alone.
    """
    allocated = max(getattr(stats, "total_allocation_bytes", 0), stats.peak_memory_in_bytes)
    return float(allocated + stats.generated_code_size_in_bytes)


def required_memory(message: str) -> float | None:
    """The bytes that a program needs by the compiler's refusal to make it, or None if it says nothing of the kind."""
    if "out of memory" not in message.lower():
        return None
    match = re.search(r"(?:Used|\()\s*([\d.]+)([KMGT]?)\)?(?: of| exceeds)", message)
    return float(match[1]) * _SUFFIXES[match[2]] if match else None


@contextlib.contextmanager
def _no_cache():
    """Without JAX's cache of compiled programs: it cannot read back what was compiled for devices that are not here."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # whether there is one is asked once, when the first program is compiled
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def _placed(shapes: Any, shardings: Any) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
    )


def _batch(program: Program) -> dict[str, jax.ShapeDtypeStruct]:
    """What `Partitioner.put_batch` would give."""
    specs = program.partitioner.batch_specs(program.batch_shapes)
    return {
        name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=NamedSharding(program.partitioner.mesh, specs[name]))
        for name, shape in program.batch_shapes.items()
    }


def _bytes_a_device(tree: Any) -> float:
    """Bytes of one device's shards of a tree of shapes."""
    total = 0
    for leaf in parameters.named_leaves(tree).values():
        total += jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype).size * leaf.dtype.itemsize
    return float(total)


def _mesh(program: Program) -> collectives.DeviceMesh:
    mesh = program.partitioner.mesh
    slices = tuple(getattr(device, "slice_index", None) or 0 for device in mesh.devices.flat)
    return collectives.DeviceMesh({axis: int(size) for axis, size in mesh.shape.items()}, slices)
