"""The result of planning, as JSON and as text."""

import contextlib
import dataclasses
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.planning.chips import GIB
from t5x_like.planning.compilation import CompiledStep
from t5x_like.planning.roofline import Bound, bound
from t5x_like.planning.schedule import Expected
from t5x_like.planning.topologies import Topology

SECONDS_PER_HOUR = 3_600
SECONDS_PER_DAY = 86_400
# Operations with the largest expected times, in JSON and in text.
LARGEST_IN_JSON, LARGEST_IN_TEXT = 40, 12


@dataclasses.dataclass(frozen=True)
class Plan:
    """Memory, work and speed of a run's train step on a slice.

    Attributes:
      topology: The slices.
      mesh: Mesh axis -> size.
      rules: Name of the rule set.
      microbatches: Number of microbatches per batch.
      model: Class of the model's configuration, such as `T5Config`.
      remat: The model's rematerialization policy; None if its configuration has none.
      parameters: Number of parameters of the model.
      model_flops: FLOPs of the model per step and device, without recomputation, and of the forward passes of teachers.
      tokens: Tokens per global batch, including padding.
      batch_rows: Rows per global batch.
      total_steps: Steps of the run; None if unknown.
      compiled: The compiled step.
      price: Price per chip-hour, in any currency; None if unknown.
      teacher_parameters: Number of parameters of the teachers that run in the step.
      segments_per_row: Number of segments of a row that the time of attention assumes.
    """

    topology: Topology
    mesh: dict[str, int]
    rules: str
    microbatches: int
    model: str
    remat: str | None
    parameters: int
    model_flops: float
    tokens: int
    batch_rows: int
    total_steps: int | None
    compiled: CompiledStep
    price: float | None = None
    teacher_parameters: int = 0
    segments_per_row: int = 1

    @property
    def bound(self) -> Bound | None:
        """Roofline of the step; None without a program."""
        work = self.compiled.work
        return bound(work, self.topology, self.compiled.devices) if work else None

    @property
    def memory_note(self) -> str | None:
        """What a step that fits needs besides the memory; see `Chip.memory_note`."""
        return self.topology.chip.memory_note(self.compiled.memory.peak) if self.compiled.fits else None

    @property
    def expected_seconds(self) -> float | None:
        """Expected time of a step, at least the bound's; None without a program."""
        return max(self.compiled.expected.seconds, self.bound.seconds) if self.bound else None

    @property
    def mfu_expected(self) -> float | None:
        """Model FLOPs utilization at the expected time; None without a program."""
        return self.model_flops / (self.expected_seconds * self.topology.chip.peak_flops) if self.bound else None

    @property
    def tokens_per_second_at_bound(self) -> float | None:
        """Tokens per second of all devices at the bound; None without a program."""
        return self.tokens / self.bound.seconds if self.bound else None

    @property
    def tokens_per_second_expected(self) -> float | None:
        """Tokens per second of all devices at the expected time; None without a program."""
        return self.tokens / self.expected_seconds if self.bound else None

    @property
    def mfu_at_bound(self) -> float | None:
        """Model FLOPs utilization at the bound; None without a program."""
        return self.model_flops / (self.bound.seconds * self.topology.chip.peak_flops) if self.bound else None

    @property
    def run_seconds(self) -> float | None:
        """Expected time of the run in seconds; None if unknown."""
        return self.total_steps * self.expected_seconds if self.bound and self.total_steps else None

    @property
    def cost(self) -> float | None:
        """Expected cost of the run, in the currency of `price`; None if unknown."""
        if self.price is None or self.run_seconds is None:
            return None
        return self.price * self.topology.chips * self.run_seconds / SECONDS_PER_HOUR


def as_json(plan: Plan) -> dict[str, Any]:
    """Returns the plan as JSON values in bytes, FLOPs and seconds.

    Values are per device and step, except of the whole model and run: `parameters`, `teacher_parameters`,
    `tokens_per_step`, `tokens_per_second_…`, `total_…`, `expected_run_seconds` and `expected_cost`. A device is a chip,
    except for tpu7x, where it is half a chip. Values that are unknown, such as the speed of a step that does not fit,
    are None. `expected_step_seconds` is at least the bound; `expected_parts` is before this maximum.

    Args:
      plan: The plan.
    """
    memory, work, limit = plan.compiled.memory, plan.compiled.work, plan.bound
    expected = plan.compiled.expected
    return {
        "topology": str(plan.topology),
        "versions": versions(plan.topology),
        "chips": plan.topology.chips,
        "mesh": plan.mesh,
        "rules": plan.rules,
        "microbatches": plan.microbatches,
        "model": plan.model,
        "remat": plan.remat,
        "parameters": plan.parameters,
        "teacher_parameters": plan.teacher_parameters,
        "parameter_bytes_per_device": memory.parameters,
        "optimizer_bytes_per_device": memory.optimizer,
        "batch_bytes_per_device": memory.batch,
        "temporary_bytes_per_device": memory.temporaries,
        "hbm_bytes_per_device": memory.peak,
        "hbm_capacity_bytes": plan.topology.chip.hbm_bytes,
        "fits": plan.compiled.fits,
        "memory_note": plan.memory_note,
        "model_flops": plan.model_flops,
        "executed_flops": work.flops if work else None,
        "hbm_traffic_bytes": work.hbm_bytes if work else None,
        "collective_bytes": work.by_kind() if work else None,
        "collective_counts": work.by_kind("count") if work else None,
        "synchronous_collective_bytes": work.by_kind("synchronous_bytes") if work else None,
        "dcn_bytes": work.dcn_bytes if work else None,
        "loops_of_unknown_length": sorted(work.unknown_loops) if work else None,
        "kernels_without_cost": sorted(work.unknown_kernels) if work else None,
        "step_seconds_bound": limit.seconds if limit else None,
        "bound_by": limit.resource if limit else None,
        "bound_parts": limit.seconds_by_resource if limit else None,
        "expected_step_seconds": plan.expected_seconds,
        "expected_parts": expected.parts if expected else None,
        "expected_breakdown": _breakdown(expected) if expected else None,
        "expected_largest": _largest(expected) if expected else None,
        "mfu_expected": plan.mfu_expected,
        "tokens_per_step": plan.tokens,
        "segments_per_row": plan.segments_per_row,
        "tokens_per_second_at_bound": plan.tokens_per_second_at_bound,
        "tokens_per_second_expected": plan.tokens_per_second_expected,
        "mfu_at_bound": plan.mfu_at_bound,
        "total_steps": plan.total_steps,
        "total_tokens": plan.tokens * plan.total_steps if plan.total_steps else None,
        "expected_run_seconds": plan.run_seconds,
        "expected_cost": plan.cost,
        "compile_seconds": plan.compiled.seconds,
    }


def text(plan: Plan) -> str:
    """Returns the plan as text."""
    memory, chip = plan.compiled.memory, plan.topology.chip
    each = "device" if chip.devices_per_chip > 1 else "chip"
    lines = [
        f"{plan.topology}: {plan.topology.chips} chips, mesh {mesh_text(plan.mesh)}, rules {plan.rules}",
        f"{plan.parameters:,} parameters"
        + (f", and {plan.teacher_parameters:,} of teachers" if plan.teacher_parameters else "")
        + f"; batches of {plan.batch_rows:,} rows, {plan.tokens:,} tokens, in "
        f"{plan.microbatches} microbatch{'es' if plan.microbatches > 1 else ''}"
        + (f"; remat {plan.remat}" if plan.remat else "")
        + (f"; {plan.segments_per_row} segments per row" if plan.segments_per_row > 1 else ""),
        "",
        f"memory per {each}",
        _row("parameters", _gib(memory.parameters)),
        _row("optimizer state", _gib(memory.optimizer)),
        _row("batch", _gib(memory.batch)),
        _row("activations, gradients, program", _gib(memory.temporaries)),
        _row(
            "peak",
            f"{_gib(memory.peak)} of {_gib(chip.hbm_bytes)}: " + ("fits" if plan.compiled.fits else "DOES NOT FIT"),
        ),
    ]
    if plan.memory_note:
        lines.append(_row("", plan.memory_note))
    if not plan.compiled.fits:
        lines += [
            "",
            "To reduce memory, increase MICROBATCHES, set remat='full' in the model's configuration, or use more chips "
            "along `fsdp` or `tensor`. `--search` tries these settings.",
        ]
    if plan.compiled.work is None:
        lines += ["The speed of a step that does not fit is unknown."]
        return "\n".join([*lines, "", _compiled_in(plan)])
    return "\n".join([*lines, "", *_work_lines(plan, each), "", *_speed_lines(plan), "", _compiled_in(plan)])


def ranking(plans: Sequence[Plan]) -> str:
    """Returns the plans of a search as a table, in the given order."""
    header = (
        f"{'mesh':<34}{'rules':<18}{'microbatches':>13}{'remat':>11}{'peak':>12}{'bound':>13}{'expected':>13}{'MFU':>8}"
    )
    lines = [header]
    for plan in plans:
        lines.append(
            f"{mesh_text(plan.mesh):<34}{plan.rules:<18}{plan.microbatches:>13}{plan.remat or '-':>11}"
            f"{_gib(plan.compiled.memory.peak):>12}{1e3 * plan.bound.seconds:>10,.2f} ms"
            f"{1e3 * plan.expected_seconds:>10,.2f} ms{100 * plan.mfu_expected:>6.1f} %"
        )
    return "\n".join(
        [*lines, "", "flags of these configurations, in the same order", *(f"  {settings(plan)}" for plan in plans)]
    )


def settings(plan: Plan) -> str:
    """Returns the flags that configure a run as planned."""
    inner = {axis: size // (plan.topology.slices if axis == "data" else 1) for axis, size in plan.mesh.items()}
    ici = ",".join(f"'{axis}':{size}" for axis, size in inner.items() if size > 1)
    flags = [f"--gin.MICROBATCHES={plan.microbatches}", f"--gin.PARTITIONING={plan.rules}", f'--gin.ICI="{{{ici}}}"']
    if plan.topology.slices > 1:
        flags.append(f"--gin.DCN=\"{{'data':{plan.topology.slices}}}\"")
    if plan.remat:
        flags.append(f"--gin.{plan.model}.remat=\"'{plan.remat}'\"")  # without quotes, `none` could mean None
    return " ".join(flags)


def mesh_text(mesh: Mapping[str, int]) -> str:
    """Returns the mesh axes with more than one device as text, with their sizes."""
    return " x ".join(f"{axis} {size}" for axis, size in mesh.items() if size > 1) or "one device"


def _work_lines(plan: Plan, each: str) -> list[str]:
    work = plan.compiled.work
    executed = f"{work.flops / 1e12:,.3f} TFLOP"
    if plan.model_flops:  # a table of vectors has none
        executed += f", {work.flops / plan.model_flops:.3f} of the model's (remat, padding, repetition)"
    lines = [
        f"work per {each} and step",
        _row("model", f"{plan.model_flops / 1e12:,.3f} TFLOP"),
        _row("executed", executed),
        _row("HBM traffic", f"{work.hbm_bytes / 1e9:,.2f} GB"),
    ]
    for (kind, axis), sent in sorted(work.collectives.items()):
        waits = f", {sent.synchronous_bytes / 1e6:,.1f} MB while the core waits"
        lines.append(
            _row(
                f"{kind} along {axis}",
                f"{sent.bytes / 1e6:,.1f} MB sent in {sent.count:,} collectives" + waits * bool(sent.synchronous_bytes),
            )
        )
    if work.unknown_loops:
        lines.append(_row("counted once", f"{len(work.unknown_loops)} loops of unknown length"))
    if work.unknown_kernels:
        names = ", ".join(sorted(work.unknown_kernels))
        lines.append(_row("not counted", f"FLOPs of kernels that do not state them: {names}"))
    return lines


def _speed_lines(plan: Plan) -> list[str]:
    limit = plan.bound
    parts = ", ".join(f"{name} {1e3 * seconds:,.2f}" for name, seconds in limit.seconds_by_resource.items() if seconds)
    lines = [
        "upper bound on speed (roofline: all resources at peak rate, fully overlapped)",
        _row("step", f"{1e3 * limit.seconds:,.2f} ms, bound by {limit.resource} (ms: {parts})"),
        _row("tokens/s", _rate(plan, plan.tokens_per_second_at_bound)),
        _row("MFU at this bound", f"{100 * plan.mfu_at_bound:.1f} %"),
        f"expected speed ({plan.topology.chip.basis})",
        _row("step", f"{1e3 * plan.expected_seconds:,.2f} ms{_expected_parts(plan)}"),
        _row("tokens/s", _rate(plan, plan.tokens_per_second_expected)),
        _row("MFU expected", f"{100 * plan.mfu_expected:.1f} %"),
        "parts of it",
        *_breakdown_lines(plan.compiled.expected),
        "largest operations of it (executions, operation, source, result)",
        *_largest_lines(plan.compiled.expected),
    ]
    if plan.run_seconds is None:
        lines.append(_row("run", "give --gin.TRAIN_STEPS=… for the time of the run, and --price=… for its cost"))
        return lines
    total, days = plan.tokens * plan.total_steps, plan.run_seconds / SECONDS_PER_DAY
    lines.append(_row("run", f"{plan.total_steps:,} steps, {total:,} tokens: {_number(days)} days"))
    if plan.cost is not None:
        hours = plan.topology.chips * plan.run_seconds / SECONDS_PER_HOUR
        lines.append(_row("cost", f"{_number(plan.cost)} ({_number(hours)} chip-hours at {plan.price:g})"))
    return lines


def _rate(plan: Plan, tokens_per_second: float) -> str:
    return f"{tokens_per_second:,.0f}, {tokens_per_second / plan.topology.chips:,.0f} per chip"


def _expected_parts(plan: Plan) -> str:
    found = plan.compiled.expected
    if found.seconds < plan.bound.seconds:
        return ", as the bound"
    parts = {"core": found.core, "synchronous collectives": found.synchronous, "waiting for transfers": found.exposed}
    return f" (ms: {', '.join(f'{name} {1e3 * seconds:,.2f}' for name, seconds in parts.items() if seconds)})"


def _breakdown(expected: Expected) -> dict[str, dict[str, float]]:
    names = ("seconds", "flops", "hbm_bytes")
    return {part: {name: getattr(share, name) for name in names} for part, share in expected.by_part.items()}


def _breakdown_lines(expected: Expected) -> list[str]:
    return [
        _row(
            part,
            f"{1e3 * share.seconds:10,.2f} ms  {100 * share.seconds / expected.seconds:5.1f} %  "
            f"{share.flops / 1e12:10,.3f} TFLOP {share.hbm_bytes / 1e9:10,.2f} GB",
        )
        for part, share in expected.by_part.items()
        if share.seconds
    ]


def _largest(expected: Expected) -> list[dict[str, Any]]:
    return [
        dataclasses.asdict(operation) | dataclasses.asdict(share)
        for operation, share in expected.largest[:LARGEST_IN_JSON]
    ]


def _largest_lines(expected: Expected) -> list[str]:
    return [
        f"  {1e3 * share.seconds:10,.2f} ms  {share.times:,} x {one.kind}, {one.source}, {one.result}"
        for one, share in expected.largest[:LARGEST_IN_TEXT]
    ]


def _compiled_in(plan: Plan) -> str:
    by = " with ".join(f"{name} {version}" for name, version in versions(plan.topology).items())
    return f"compiled in {plan.compiled.seconds:.0f} s by {by}; no step was run"


def versions(topology: Topology) -> dict[str, str]:
    """Returns the versions of the compiler of a chip and of JAX, which determine the compiled program."""
    found = {}
    for name in (*topology.chip.packages, "jax"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _number(value: float) -> str:
    """Formats with two decimals, or with two significant digits below 1."""
    return f"{value:,.2f}" if value >= 1 else f"{value:.2g}"


def _row(name: str, value: str) -> str:
    return f"  {name:<34}{value}"


def _gib(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB / 100 else f"{count / 2**20:.2f} MiB"
