"""Debugging of a run: prints the first batch, traces some steps, and explains errors of exhausted memory."""

import contextlib
import math
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging

from t5x_like import parameters, paths
from t5x_like.errors import RunFailed
from t5x_like.runtime import protocol
from t5x_like.training.program import Program

PROFILE = "profile"
_GIB = 2**30
_LISTED = 8
# XLA lists the largest allocations on TPU and GPU as "  1. Size: 2.00G\n     Operator: …\n     Shape: f32[…]".
_XLA_BUFFER = re.compile(r"Size: (?P<size>[\d.]+\w?)\n(?:\s*Operator: (?P<operator>.*)\n)?\s*Shape: (?P<shape>\S+)")


class OutOfMemory(RunFailed):
    """A device is out of memory. The message lists the largest arrays and the settings that save memory."""

    exit_code = protocol.LIKELY_TO_REPEAT


def log_first_batch(batch: Mapping[str, jax.Array], is_first: bool) -> None:
    """Logs a batch if it is the first one of the run and `jit` is disabled, as by `--debug`."""
    if is_first and jax.config.jax_disable_jit:
        logging.info("first batch:\n%s", describe_batch(batch))
        logging.info(
            "without compilation, each operation is dispatched by itself: the first step, which prepares all of them, "
            "takes tens of seconds, and later steps take seconds"
        )


def describe_batch(batch: Mapping[str, jax.Array]) -> str:
    """Describes each feature by name, shape, dtype, sharding and first row, one line per feature.

    Args:
      batch: global arrays. The row shown is the first one that this process holds.
    """
    lines = []
    for name, array in batch.items():
        row = np.asarray(array.addressable_shards[0].data)[0]
        shown = np.array2string(row, max_line_width=10**6, threshold=10**6, separator=" ")
        lines.append(f"  {name} {list(array.shape)} {array.dtype}, sharding {array.sharding.spec}: {shown}")
    return "\n".join(lines)


class Profile:
    """Traces some steps of a run into `MODEL_DIR/profile`, for TensorBoard and xprof. Use it as a context manager.

    Args:
      model_dir: the run directory, local or in a bucket.
      steps: the first and the last step to trace; None for no trace.
    """

    def __init__(self, model_dir: str, steps: tuple[int, int] | None):
        self._target, self._steps, self._directory = paths.join(model_dir, PROFILE), steps, None

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *exception) -> None:
        if self._directory is not None:
            self._stop()
        elif self._steps:
            logging.warning("no trace was written, because the run had no step from %d to %d", *self._steps)

    def before_step(self, step: int) -> None:
        """Starts the trace if `step` is one of the steps. Call it before each step; steps are counted from 1."""
        if self._steps and self._directory is None and self._steps[0] <= step <= self._steps[1]:
            is_local = paths.is_local(self._target)
            self._directory = (
                str(paths.local(self._target)) if is_local else tempfile.mkdtemp(prefix="t5x_like_profile_")
            )
            jax.profiler.start_trace(self._directory)

    def after_step(self, step: int, results: Any) -> None:
        """Stops the trace after its last step. Call it after each step was started, with the results of the step."""
        if self._directory is not None and step >= self._steps[1]:
            jax.block_until_ready(results)
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        if not paths.is_local(self._target):
            root = pathlib.Path(self._directory)
            for file in root.rglob("*"):
                if file.is_file():
                    paths.write_atomic(paths.join(self._target, *file.relative_to(root).parts), file.read_bytes())
            shutil.rmtree(self._directory, ignore_errors=True)
        logging.info("traced steps %d to %d; show them with tensorboard --logdir %s", *self._steps, self._target)
        self._directory = self._steps = None


@contextlib.contextmanager
def explain_out_of_memory(program: Program, microbatches: int) -> Iterator[None]:
    """Converts JAX's error about exhausted device memory into one that explains it.

    Args:
      program: the program that runs inside of the context.
      microbatches: number of microbatches per batch.

    Raises:
      OutOfMemory: instead of JAX's error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise OutOfMemory(describe_memory(program, microbatches, str(error))) from error


def describe_memory(program: Program, microbatches: int, error: str) -> str:
    """Describes the contents of a device's memory, largest arrays first, and the settings that save memory.

    Args:
      program: the program that ran out of memory.
      microbatches: number of microbatches per batch.
      error: JAX's error message.
    """
    state, frozen = program.shapes
    shardings = program.shardings
    kept = _bytes_of("params", state.params, shardings[0].params) | _bytes_of("frozen", frozen, shardings[1])
    kept |= _bytes_of("average", state.average, shardings[0].average)
    optimizer = _bytes_of("opt_state", state.opt_state, shardings[0].opt_state)
    gradients = sum(_bytes_of("params", state.params, shardings[0].params).values())
    wanted = [
        f"  {match['size']}  {match['shape']}  {match['operator'] or ''}" for match in _XLA_BUFFER.finditer(error)
    ]
    biggest = sorted((kept | optimizer).items(), key=lambda item: -item[1])[:_LISTED]
    lines = [
        f"a device is out of memory: {error.splitlines()[0][:300]}",
        *_limit(program.partitioner.mesh),
        f"Per device: parameters {_gib(sum(kept.values()))}, gradients {_gib(gradients)} (the size of the trained "
        f"parameters), optimizer state {_gib(sum(optimizer.values()))}; activations use the rest. Largest arrays:",
        *(f"  {_gib(size)}  {name}" for name, size in biggest),
        *(["Largest allocations of XLA:", *wanted[:_LISTED]] if wanted else []),
        "Settings that save memory:",
        *(f"  {line}" for line in _settings(program, microbatches)),
    ]
    return "\n".join(lines)


def _bytes_of(prefix: str, shapes: Any, shardings: Any) -> dict[str, int]:
    """Returns the bytes of each array on one device, by a description of the array."""
    layouts = parameters.named_leaves(shardings)
    found = {}
    for name, leaf in parameters.named_leaves(shapes).items():
        shard = layouts[name].shard_shape(leaf.shape)
        found[f"{prefix}/{name} {list(leaf.shape)} {leaf.dtype}, shard {list(shard)}"] = (
            math.prod(shard) * leaf.dtype.itemsize
        )
    return found


def _limit(mesh: jax.sharding.Mesh) -> list[str]:
    device = next(device for device in mesh.devices.flat if device.process_index == jax.process_index())
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return []
    used = _gib(stats.get("bytes_in_use", 0))
    return [f"{device.device_kind}: {used} of {_gib(stats['bytes_limit'])} in use"]


def _settings(program: Program, microbatches: int) -> Iterator[str]:
    name, config = type(program.config).__name__, program.config
    mesh, rows = program.partitioner.mesh, next(iter(program.batch_shapes.values()))[0]
    shards = program.partitioner.axis_size("batch")
    more = next((count for count in range(microbatches + 1, rows + 1) if rows % (shards * count) == 0), None)
    if more:
        yield f"--gin.MICROBATCHES={more} (now {microbatches}): fewer activations at a time, with the same result"
    if hasattr(config, "remat") and config.remat != "full":
        yield f"--gin.{name}.remat=full (now {config.remat}): activations are recomputed instead of stored"
    if mesh.size > 1 and mesh.shape["fsdp"] < mesh.size:
        yield f"--gin.PARTITIONING=fsdp --gin.ICI=\"{{'fsdp': -1}}\" (now {program.partitioner.rules_name}, "
        yield f"  {dict(mesh.shape)}): parameters, gradients and optimizer state are sharded over all devices"
    elif mesh.size == 1:
        yield "more devices: PARTITIONING=fsdp shards parameters, gradients and optimizer state over them"
    yield "--gin_file=optimizers/adafactor.gin: an optimizer with a small state"
    yield f"--gin.BATCH_SIZE=… (now {rows}) or shorter --gin.TASK_FEATURE_LENGTHS=…: both change the training"
    yield "`t5x_like plan --search` with the same gin files finds microbatches, remat and meshes that fit"


def _gib(count: float) -> str:
    return f"{count / _GIB:,.2f} GiB" if count >= _GIB / 100 else f"{count / 2**20:,.2f} MiB"
