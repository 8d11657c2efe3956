"""Compiles a train step for devices that are not attached, and reads its memory from the compiler."""

import contextlib
import dataclasses
import re
import time
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from t5x_like import optimizers, parameters
from t5x_like.mesh import slice_of
from t5x_like.planning import collectives, hlo, schedule, walk
from t5x_like.planning.topologies import Topology
from t5x_like.runtime import hardware_files
from t5x_like.training.program import Program

# Suffixes of sizes in error messages of the compiler, in bytes.
_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory of a step in bytes per device.

    Attributes:
      parameters: Parameters, including frozen ones and teachers'.
      optimizer: Optimizer state, state that networks carry from batch to batch, and counters.
      batch: Features of a batch.
      temporaries: Gradients, activations, other temporaries and the program: `peak` minus the other attributes.
      peak: Peak memory of the step. For a step that does not fit, the memory that the compiler reports as required.
    """

    parameters: float
    optimizer: float
    batch: float
    temporaries: float
    peak: float


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A compiled train step.

    Attributes:
      memory: Memory per device.
      fits: Whether the step fits in the memory of the devices.
      work: Work of a device; None for a step that does not fit.
      expected: Expected time of the step; None likewise.
      devices: The devices of the program.
      seconds: Time of lowering and compilation on this host, in seconds.
    """

    memory: Memory
    fits: bool
    work: walk.Work | None
    expected: schedule.Expected | None
    devices: collectives.DeviceMesh
    seconds: float


def compile_step(program: Program, topology: Topology) -> CompiledStep:
    """Lowers and compiles the train step of a program without allocating arrays.

    Args:
      program: The program of a training run.
      topology: The slices of the program's devices.

    Returns:
      The compiled step.

    Raises:
      UserError: The compiler does not know an option of the recipe.
      jax.errors.JaxRuntimeError: Compilation fails for another reason than memory.
    """
    started = time.monotonic()
    state, frozen, batch = program.abstract_arguments()
    parameters_and_teachers = (optimizers.merge(state.params, frozen.params), frozen.teachers)
    arguments = [_bytes_per_device(tree) for tree in (parameters_and_teachers, state.replace(params=()), batch)]
    devices = _mesh(program, topology)
    try:
        with _without_compilation_cache(), _whole_stacks():
            traced = program.train_step.trace(state, frozen, batch)
            lowered = traced.lower(lowering_platforms=(topology.chip.platform,))
            with hardware_files.explain_unknown_options(topology.chip.platform):
                compiled = lowered.compile(compiler_options=dict(topology.chip.compiler_options) or None)
    except jax.errors.JaxRuntimeError as error:
        peak = required_memory(str(error))
        if peak is None:
            raise
        memory = Memory(*arguments, max(0.0, peak - sum(arguments)), peak)
        return CompiledStep(memory, False, None, None, devices, time.monotonic() - started)
    peak = peak_memory(compiled.memory_analysis())
    memory = Memory(*arguments, peak - sum(arguments), peak)
    if peak > topology.chip.hbm_bytes:  # the compiler for TPUs fails then, and the one for GPUs does not
        return CompiledStep(memory, False, None, None, devices, time.monotonic() - started)
    module = hlo.parse(compiled.as_text())
    return CompiledStep(
        memory=memory,
        fits=True,
        work=walk.work(module, devices),
        expected=schedule.expected(module, devices, topology),
        devices=devices,
        seconds=time.monotonic() - started,
    )


def peak_memory(stats: Any) -> float:
    """Returns the peak memory of a compiled program, including the program itself, in bytes.

    `temp_size_in_bytes` is not used: it adds temporaries that are not alive at the same time and can be 50 % too large.

    Args:
      stats: Result of `memory_analysis()`. Older versions of jaxlib have no `total_allocation_bytes`.
    """
    allocated = max(getattr(stats, "total_allocation_bytes", 0), stats.peak_memory_in_bytes)
    return float(allocated + stats.generated_code_size_in_bytes)


def required_memory(message: str) -> float | None:
    """Parses the required memory from the compiler's error if a program does not fit into HBM.

    Args:
      message: Message of the error.

    Returns:
      Bytes, or None for other errors, such as of an operation that does not fit into the core's own memory.
    """
    if not re.search(r"out of memory (?:on|in memory space) hbm", message, re.IGNORECASE):
        return None
    # "Memory required for HLO temporaries" includes the arguments of the program.
    match = re.search(r"(?:Used|\()\s*([\d.]+)([KMGT]?)\)?(?: of| exceeds)", message)
    return float(match[1]) * _SUFFIXES[match[2]] if match else None


@contextlib.contextmanager
def _without_compilation_cache():
    """Disables JAX's compilation cache, which cannot load programs for devices that are not attached."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX checks for a cache only once, at the first compilation
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


@contextlib.contextmanager
def _whole_stacks():
    """Lets programs have the whole stack of each operation, by which `breakdown` finds what it is for."""
    before = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", -1)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def _bytes_per_device(tree: Any) -> float:
    """Returns the bytes of the shards on one device."""
    total = 0
    for leaf in parameters.named_leaves(tree).values():
        total += jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype).size * leaf.dtype.itemsize
    return float(total)


def _mesh(program: Program, topology: Topology) -> collectives.DeviceMesh:
    mesh = program.partitioner.mesh
    slices = tuple(slice_of(device) for device in mesh.devices.flat)
    # The last coordinates are positions within a slice: all three of a TPU, and the number of a GPU within its host.
    coordinates = tuple(tuple(device.coords)[-topology.chip.dimensions :] for device in mesh.devices.flat)
    return collectives.DeviceMesh({axis: int(size) for axis, size in mesh.shape.items()}, slices, coordinates)
