"""The result of `bench`, as JSON and as text."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from t5x_like.benchmarking.matrix_products import MatrixRate
from t5x_like.benchmarking.parts import FORWARD, FORWARD_BACKWARD, PREPARE, STEP
from t5x_like.benchmarking.timing import Times
from t5x_like.partitioning import Partitioner
from t5x_like.planning.report import mesh_text
from t5x_like.runtime import cpu
from t5x_like.training.runs import run_directory

_GIB = 2**30  # bytes


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Speed and memory of a training step.

    Attributes:
      model: Class of the model's configuration.
      parameters: Number of parameters of the model.
      teachers: Teacher -> its model, and whether it runs in the step or its logits are stored.
      batches: Where the batch comes from: `synthetic`, or the name of a cache.
      rows: Rows of the global batch.
      tokens: Real tokens of the global batch.
      microbatches: Microbatches per batch.
      updates_per_batch: Updates that read one batch; `prepare` is a part of the first of them.
      times: `step`, and optionally `prepare`, `forward` and `forward_backward` -> durations after the warm-up.
      model_flops: FLOPs of the forward and backward pass of a step, without recomputation, and of the forward pass of
        the teachers.
      peak_flops: FLOP/s of all devices that the MFU refers to: their bfloat16 peak, or on CPU the rate at which this
        machine computes the products of the step alone. None if unknown.
      matrix_rate: The measured rate on CPU; None on other platforms, and for a step without matrix products.
      peak_bytes: Peak memory of a device in the step, which the compiler computes.
      temporary_bytes: The temporaries in it; None on TPU, where the compiler does not report them.
      device_peak_bytes: Peak memory that the devices report after the step; None if they do not.
      compile_seconds: Time of tracing and compilation of the step in seconds.
      mesh: Mesh axis -> size.
      rules: Name of the rule set.
      platform: `cpu`, `gpu` or `tpu`.
      environment: Device, number of cores, and versions.
    """

    model: str
    parameters: int
    teachers: Mapping[str, str]
    batches: str
    rows: int
    tokens: float
    microbatches: int
    updates_per_batch: int
    times: Mapping[str, Times]
    model_flops: float
    peak_flops: float | None
    matrix_rate: MatrixRate | None
    peak_bytes: float
    temporary_bytes: float | None
    device_peak_bytes: int | None
    compile_seconds: float
    mesh: Mapping[str, int]
    rules: str
    platform: str
    environment: Mapping[str, Any]

    @property
    def step_seconds(self) -> float:
        """Median duration of a step in seconds."""
        return self.times[STEP].median

    @property
    def backward_seconds(self) -> float | None:
        """Median seconds of forward and backward minus the median of forward; None if they were not measured."""
        return self._difference(FORWARD_BACKWARD, FORWARD)

    @property
    def optimizer_seconds(self) -> float | None:
        """Median seconds of the step minus the medians of its other parts.

        None if they were not measured, or if steps differ, because several read one batch.
        """
        found = self._difference(STEP, FORWARD_BACKWARD)
        if found is None or PREPARE not in self.times:
            return found
        return found - self.times[PREPARE].median if self.updates_per_batch == 1 else None

    @property
    def tokens_per_second(self) -> float:
        """Real tokens per second of all devices."""
        return self.tokens / self.step_seconds

    @property
    def floor_seconds(self) -> float | None:
        """Model FLOPs at the peak in seconds; None if the peak is unknown."""
        return self.model_flops / self.peak_flops if self.peak_flops else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization, between 0 and 1; None if the peak is unknown."""
        return self.floor_seconds / self.step_seconds if self.peak_flops else None

    def _difference(self, longer: str, shorter: str) -> float | None:
        if shorter not in self.times:
            return None
        return self.times[longer].median - self.times[shorter].median


def as_json(found: Benchmark) -> dict[str, Any]:
    """Returns the benchmark as JSON values in seconds, bytes and FLOPs; unknown values are None."""
    same = ("model", "parameters", "teachers", "batches", "rows", "tokens", "microbatches", "model_flops", "peak_flops")
    rate = found.matrix_rate
    return {name: getattr(found, name) for name in same} | {
        "seconds": {
            name: {"median": each.median, "min": each.min, "max": each.max, "all": each.seconds}
            for name, each in found.times.items()
        },
        "backward_seconds": found.backward_seconds,
        "optimizer_seconds": found.optimizer_seconds,
        "tokens_per_second": found.tokens_per_second,
        "floor_seconds": found.floor_seconds,
        "mfu": found.mfu,
        "matrix_products": _products(rate) if rate else None,
        "peak_bytes_per_device": found.peak_bytes,
        "temporary_bytes_per_device": found.temporary_bytes,
        "device_peak_bytes": found.device_peak_bytes,
        "compile_seconds": found.compile_seconds,
        "mesh": dict(found.mesh),
        "rules": found.rules,
        "platform": found.platform,
        **found.environment,
    }


def _products(rate: MatrixRate) -> list[dict[str, Any]]:
    return [dataclasses.asdict(product) | {"flops_per_second": each} for product, each in rate.by_product.items()]


def text(found: Benchmark) -> str:
    """Returns the benchmark as text."""
    about = found.environment
    lines = [
        f"{found.model}, {found.parameters:,} parameters; {about['device']}, {about['cores']} cores, "
        f"mesh {mesh_text(found.mesh)}, rules {found.rules}",
        f"{found.batches} batches of {found.rows:,} rows, {found.tokens:,.0f} tokens, in {found.microbatches} "
        f"microbatch{'es' if found.microbatches > 1 else ''}",
        *(f"{name}: {each}" for name, each in found.teachers.items()),
        "",
        f"  {'':<24}{'median':>12}{'min':>12}{'max':>12}",
        *(
            f"  {name.replace('_', ' and '):<24}{_time(each.median):>12}{_time(each.min):>12}{_time(each.max):>12}"
            for name, each in found.times.items()
        ),
    ]
    if found.backward_seconds is not None:
        lines.append(f"  {'backward':<24}{_time(found.backward_seconds):>12}   forward and backward - forward")
    if found.optimizer_seconds is not None:
        others = "forward and backward" + (" - prepare" if PREPARE in found.times else "")
        lines.append(f"  {'optimizer':<24}{_time(found.optimizer_seconds):>12}   step - {others}")
    if found.updates_per_batch > 1:
        lines.append(f"  {found.updates_per_batch} steps read one batch, which the first of them prepares")
    temporaries = f", {_gib(found.temporary_bytes)} of it temporaries" if found.temporary_bytes is not None else ""
    reported = found.device_peak_bytes
    return "\n".join(
        [
            *lines,
            "",
            *([_row("tokens/s", f"{found.tokens_per_second:,.0f}")] if found.tokens else []),
            *_utilization(found),
            _row("peak memory", f"{_gib(found.peak_bytes)} per device{temporaries}, computed by the compiler")
            + (f"; {_gib(reported)} reported by the device" if reported else ""),
            _row("compilation", f"{found.compile_seconds:.1f} s"),
        ]
    )


def _utilization(found: Benchmark) -> list[str]:
    if not found.model_flops:  # a table of vectors
        return [_row("MFU", "not computed, because the model has no layers")]
    flops = f"{found.model_flops / 1e12:,.3f} TFLOP"
    if found.mfu is None:
        return [_row("MFU", f"unknown, because the peak of {found.environment['device']} is; {flops} per step")]
    source = "the measured rate of the step's matrix products" if found.matrix_rate else "bfloat16 peak of all devices"
    peak = f"{found.peak_flops / 1e12:,.3f} TFLOP/s"
    return [
        _row("MFU", f"{100 * found.mfu:.1f} % = {flops} / ({_time(found.step_seconds)} · {peak}, {source})"),
        _row("floor", f"{_time(found.floor_seconds)} at this rate; the step takes {1 / found.mfu:.2f} times as long"),
    ]


def _row(name: str, value: str) -> str:
    return f"  {name:<24}{value}"


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if abs(seconds) >= 1 else f"{1e3 * seconds:,.2f} ms"


def _gib(count: float) -> str:
    return f"{count / _GIB:.2f} GiB" if count >= _GIB / 100 else f"{count / 2**20:.2f} MiB"


def environment(partitioner: Partitioner) -> dict[str, Any]:
    """Returns what a measurement depends on beside the code: device, cores, and versions."""
    found = run_directory.environment(partitioner)
    return {
        "device": cpu.model_name() if partitioner.platform == "cpu" else found["device"],
        "cores": os.cpu_count(),
        **{name: found[name] for name in ("t5x_like", "jax", "python")},
    }
