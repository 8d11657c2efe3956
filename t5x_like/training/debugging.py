"""Looking closer at a run: the first batch, a trace of some steps, and what took the memory when it ran out."""

import contextlib
import math
import os
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
from t5x_like.training.program import Program

PROFILE = "profile"
_GIB = 2**30
_LISTED = 8
# "  1. Size: 2.00G\n     Operator: …\n     Shape: f32[…]", as XLA lists what it wanted to allocate on TPU and GPU.
_XLA_BUFFER = re.compile(r"Size: (?P<size>[\d.]+\w?)\n(?:\s*Operator: (?P<operator>.*)\n)?\s*Shape: (?P<shape>\S+)")


class OutOfMemory(RunFailed):
    """The devices' memory does not hold the run; the message says what takes it and what to change."""


def log_first_batch(batch: Mapping[str, jax.Array], first: bool) -> None:
    """Prints a batch where it is the first one and JAX has been told to run without `jit` (`--debug`)."""
    if first and jax.config.jax_disable_jit:
        logging.info("the first batch:\n%s", describe_batch(batch))


def describe_batch(batch: Mapping[str, jax.Array]) -> str:
    """Name, shape, dtype, layout and first row of every feature, a line each.

    Args:
      batch: global arrays; of each the row is shown that this process holds first.
    """
    lines = []
    for name, array in batch.items():
        row = np.asarray(array.addressable_shards[0].data)[0]
        shown = np.array2string(row, max_line_width=10**6, threshold=10**6, separator=" ")
        lines.append(f"  {name} {list(array.shape)} {array.dtype}, split {array.sharding.spec}: {shown}")
    return "\n".join(lines)


class Profile:
    """Traces some steps of a run for TensorBoard and xprof, into `MODEL_DIR/profile`; use it as a context manager."""

    def __init__(self, model_dir: str, steps: tuple[int, int] | None):
        """Traces nothing yet.

        Args:
          model_dir: the run's folder, local or in a bucket.
          steps: the first and the last step to trace; None for none.
        """
        self._target, self._steps, self._folder = paths.join(model_dir, PROFILE), steps, None

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, *exception) -> None:
        if self._folder is not None:
            self._stop()
        elif self._steps:
            logging.warning("no step from %d to %d was run: there is no trace", *self._steps)

    def before_step(self, step: int) -> None:
        """To be called before a step is started; steps are counted from 1 as in the metrics."""
        if self._steps and self._folder is None and self._steps[0] <= step <= self._steps[1]:
            is_local = paths.is_local(self._target)
            self._folder = str(paths.local(self._target)) if is_local else tempfile.mkdtemp(prefix="t5x_like_profile_")
            jax.profiler.start_trace(self._folder)

    def after_step(self, step: int, results: Any) -> None:
        """To be called after a step was started, with what it returns."""
        if self._folder is not None and step >= self._steps[1]:
            jax.block_until_ready(results)
            self._stop()

    def _stop(self) -> None:
        jax.profiler.stop_trace()
        if not paths.is_local(self._target):
            for folder, _, names in os.walk(self._folder):
                for name in names:
                    with open(os.path.join(folder, name), "rb") as file:
                        inner = os.path.relpath(os.path.join(folder, name), self._folder)
                        paths.write_atomic(paths.join(self._target, *inner.split(os.sep)), file.read())
            shutil.rmtree(self._folder, ignore_errors=True)
        logging.info("traced the steps %d to %d: tensorboard --logdir %s", *self._steps, self._target)
        self._folder = self._steps = None


@contextlib.contextmanager
def explain_out_of_memory(program: Program, microbatches: int) -> Iterator[None]:
    """Turns the error of a device that is out of memory into one that says what takes it.

    Args:
      program: what was running.
      microbatches: into how many parts it splits its batches.

    Raises:
      OutOfMemory: in the place of JAX's error.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise OutOfMemory(describe_memory(program, microbatches, str(error))) from error


def describe_memory(program: Program, microbatches: int, error: str) -> str:
    """What fills a device's memory, the biggest arrays first, and the settings that make them smaller.

    Args:
      program: what was running.
      microbatches: into how many parts it splits its batches.
      error: what JAX says.
    """
    state, frozen = program.shapes
    shardings = program.shardings
    kept = _bytes_of("params", state.params, shardings[0].params) | _bytes_of("frozen", frozen, shardings[1])
    optimizer = _bytes_of("opt_state", state.opt_state, shardings[0].opt_state)
    gradients = sum(_bytes_of("params", state.params, shardings[0].params).values())
    wanted = [
        f"  {match['size']}  {match['shape']}  {match['operator'] or ''}" for match in _XLA_BUFFER.finditer(error)
    ]
    biggest = sorted((kept | optimizer).items(), key=lambda item: -item[1])[:_LISTED]
    lines = [
        f"a device is out of memory: {error.splitlines()[0][:300]}",
        *_limit(program.partitioner.mesh),
        f"On each device: parameters {_gib(sum(kept.values()))}, gradients as much as the trained ones "
        f"({_gib(gradients)}), optimizer state {_gib(sum(optimizer.values()))}; what is left goes to activations. The "
        "biggest arrays that stay:",
        *(f"  {_gib(size)}  {name}" for name, size in biggest),
        *(["The biggest that XLA wanted beside them:", *wanted[:_LISTED]] if wanted else []),
        "What makes it smaller:",
        *(f"  {line}" for line in _settings(program, microbatches)),
    ]
    return "\n".join(lines)


def _bytes_of(prefix: str, shapes: Any, shardings: Any) -> dict[str, int]:
    """Bytes on one device by name, shape and logical layout."""
    layouts = parameters.named_leaves(shardings)
    found = {}
    for name, leaf in parameters.named_leaves(shapes).items():
        share = layouts[name].shard_shape(leaf.shape)
        found[f"{prefix}/{name} {list(leaf.shape)} {leaf.dtype}, of which {list(share)} here"] = (
            math.prod(share) * leaf.dtype.itemsize
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
    parts = program.partitioner.axis_size("batch")
    more = next((count for count in range(microbatches + 1, rows + 1) if rows % (parts * count) == 0), None)
    if more:
        yield f"--gin.MICROBATCHES={more} (now {microbatches}): fewer activations at a time, the same result"
    if hasattr(config, "remat") and config.remat != "full":
        yield f"--gin.{name}.remat=full (now {config.remat}): activations are computed twice rather than kept"
    if mesh.size > 1 and mesh.shape["fsdp"] < mesh.size:
        yield f"--gin.PARTITIONING=fsdp --gin.ICI=\"{{'fsdp': -1}}\" (now {program.partitioner.rules_name}, "
        yield f"  {dict(mesh.shape)}): parameters, gradients and optimizer state are split over all devices"
    elif mesh.size == 1:
        yield "more devices: with PARTITIONING=fsdp parameters, gradients and optimizer state are split over them"
    yield "--gin_file=optimizers/adafactor.gin: nearly no optimizer state, where another optimizer is used"
    yield f"--gin.BATCH_SIZE=… (now {rows}) or shorter --gin.TASK_FEATURE_LENGTHS=…: these change the training"
    yield "`t5x_like plan --search` with the same gin files tries microbatches, remat and meshes out beforehand"


def _gib(count: float) -> str:
    return f"{count / _GIB:,.2f} GiB" if count >= _GIB / 100 else f"{count / 2**20:,.2f} MiB"
