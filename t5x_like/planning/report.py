"""A plan as numbers, as JSON and as text."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.planning.chips import GIB
from t5x_like.planning.compilation import CompiledStep
from t5x_like.planning.roofline import Bound, bound
from t5x_like.planning.topologies import Topology

SECONDS_PER_DAY = 86_400


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a step of a run needs of a slice, and how fast it can be.

    Attributes:
      topology: the slice.
      mesh: mesh axis -> size.
      rules: name of the rule set.
      microbatches: parts of a batch.
      remat: what the model computes again in the backward pass, where it says so.
      parameters: numbers in the model.
      model_flops: of a step on one device, without what is computed again.
      tokens: positions of a batch, over all devices.
      batch_rows: rows of it.
      total_steps: steps of the whole run, where it is known.
      compiled: what the compiler says.
      price: of a chip, an hour, in the user's money; None for none.
    """

    topology: Topology
    mesh: dict[str, int]
    rules: str
    microbatches: int
    remat: str | None
    parameters: int
    model_flops: float
    tokens: int
    batch_rows: int
    total_steps: int | None
    compiled: CompiledStep
    price: float | None = None

    @property
    def bound(self) -> Bound | None:
        """The roofline; None where the step does not fit."""
        return bound(self.compiled.work, self.topology) if self.compiled.work else None

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.bound.seconds if self.bound else None

    @property
    def mfu_at_bound(self) -> float | None:
        """Model FLOPs over what the devices could do in the time of the bound."""
        return self.model_flops / (self.bound.seconds * self.topology.chip.peak_flops) if self.bound else None

    @property
    def run_seconds(self) -> float | None:
        return self.total_steps * self.bound.seconds if self.bound and self.total_steps else None

    @property
    def cost(self) -> float | None:
        """Of the whole run at the bound, in the user's money."""
        if self.price is None or self.run_seconds is None:
            return None
        return self.price * self.topology.chips * self.run_seconds / 3600


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan for machines: bytes, FLOPs and seconds; what is `null` is not known because the step does not fit.

    Everything that is not said to be otherwise is of one device and one step. A device is a chip, but for tpu7x, where
    it is half of one.
    """
    memory, work, limit = plan.compiled.memory, plan.compiled.work, plan.bound
    return {
        "topology": str(plan.topology),
        "chips": plan.topology.chips,
        "mesh": plan.mesh,
        "rules": plan.rules,
        "microbatches": plan.microbatches,
        "remat": plan.remat,
        "parameters": plan.parameters,
        "parameter_bytes_per_chip": memory.parameters,
        "optimizer_bytes_per_chip": memory.optimizer,
        "batch_bytes_per_chip": memory.batch,
        "temporary_bytes_per_chip": memory.temporaries,
        "hbm_bytes_per_chip": memory.peak,
        "hbm_capacity_bytes": plan.topology.chip.hbm_bytes,
        "fits": plan.compiled.fits,
        "model_flops": plan.model_flops,
        "executed_flops": work.flops if work else None,
        "hbm_traffic_bytes": work.hbm_bytes if work else None,
        "collective_bytes": work.by_kind() if work else None,
        "dcn_bytes": work.dcn_bytes if work else None,
        "loops_of_unknown_length": sorted(work.unknown_loops) if work else None,
        "step_seconds_bound": limit.seconds if limit else None,
        "bound_by": limit.resource if limit else None,
        "bound_parts": limit.seconds_by_resource if limit else None,
        "tokens_per_step": plan.tokens,
        "tokens_per_second": plan.tokens_per_second,
        "mfu_at_bound": plan.mfu_at_bound,
        "total_steps": plan.total_steps,
        "total_tokens": plan.tokens * plan.total_steps if plan.total_steps else None,
        "run_seconds_bound": plan.run_seconds,
        "cost_bound": plan.cost,
        "compile_seconds": plan.compiled.seconds,
    }


def text(plan: Plan) -> str:
    """The plan for people."""
    memory, chip = plan.compiled.memory, plan.topology.chip
    each = "device" if chip.devices_per_chip > 1 else "chip"
    lines = [
        f"{plan.topology}: {plan.topology.chips} chips, mesh {mesh_text(plan.mesh)}, rules {plan.rules}",
        f"{plan.parameters:,} parameters; batches of {plan.batch_rows:,} rows, {plan.tokens:,} tokens, in "
        f"{plan.microbatches} microbatch{'es' if plan.microbatches > 1 else ''}"
        + (f"; remat {plan.remat}" if plan.remat else ""),
        "",
        f"memory of a {each}",
        _row("parameters", _gib(memory.parameters)),
        _row("optimizer state", _gib(memory.optimizer)),
        _row("batch", _gib(memory.batch)),
        _row("activations, gradients, program", _gib(memory.temporaries)),
        _row(
            "peak",
            f"{_gib(memory.peak)} of {_gib(chip.hbm_bytes)}: " + ("fits" if plan.compiled.fits else "DOES NOT FIT"),
        ),
    ]
    if plan.compiled.work is None:
        lines += [
            "",
            "The compiler makes no program that does not fit, so there is nothing to say of its speed. What makes it "
            "smaller: more MICROBATCHES, remat='full' in the model's configuration, more chips along `fsdp` or "
            "`tensor`; `--search` tries them.",
        ]
        return "\n".join([*lines, "", _compiled_in(plan)])
    return "\n".join([*lines, "", *_work_lines(plan, each), "", *_speed_lines(plan), "", _compiled_in(plan)])


def ranking(plans: Sequence[Plan]) -> str:
    """The plans of a search as a table, in the order given."""
    header = f"{'mesh':<34}{'microbatches':>13}{'remat':>7}{'peak':>12}{'step':>13}{'bound by':>10}{'MFU':>8}"
    lines = [header]
    for plan in plans:
        limit = plan.bound
        lines.append(
            f"{mesh_text(plan.mesh):<34}{plan.microbatches:>13}{plan.remat or '-':>7}"
            f"{_gib(plan.compiled.memory.peak):>12}"
            f"{1e3 * limit.seconds:>10,.2f} ms{limit.resource:>10}{100 * plan.mfu_at_bound:>6.1f} %"
        )
    return "\n".join([*lines, "", "configured, in this order, by", *(f"  {settings(plan)}" for plan in plans)])


def settings(plan: Plan) -> str:
    """The flags that configure a run this way."""
    inner = {axis: size // (plan.topology.slices if axis == "data" else 1) for axis, size in plan.mesh.items()}
    ici = ",".join(f"'{axis}':{size}" for axis, size in inner.items() if size > 1)
    flags = [f"--gin.MICROBATCHES={plan.microbatches}", f"--gin.PARTITIONING={plan.rules}", f'--gin.ICI="{{{ici}}}"']
    if plan.topology.slices > 1:
        flags.append(f"--gin.DCN=\"{{'data':{plan.topology.slices}}}\"")
    return " ".join(flags) + (f", and the model's remat='{plan.remat}'" if plan.remat else "")


def mesh_text(mesh: Mapping[str, int]) -> str:
    """The axes of a mesh that split something, with their sizes."""
    return " x ".join(f"{axis} {size}" for axis, size in mesh.items() if size > 1) or "one device"


def _work_lines(plan: Plan, each: str) -> list[str]:
    work = plan.compiled.work
    ratio = work.flops / plan.model_flops
    lines = [
        f"work of a {each} in a step",
        _row("model", f"{plan.model_flops / 1e12:,.3f} TFLOP"),
        _row("executed", f"{work.flops / 1e12:,.3f} TFLOP, {ratio:.3f} of the model's (remat, padding, repetition)"),
        _row("HBM traffic", f"{work.hbm_bytes / 1e9:,.2f} GB"),
    ]
    for kind, axes in work.by_kind().items():
        lines += [_row(f"{kind} along {axis}", f"{sent / 1e6:,.1f} MB sent") for axis, sent in axes.items()]
    if work.unknown_loops:
        lines.append(_row("counted once", f"{len(work.unknown_loops)} loops of unknown length"))
    return lines


def _speed_lines(plan: Plan) -> list[str]:
    limit = plan.bound
    parts = ", ".join(f"{name} {1e3 * seconds:,.2f}" for name, seconds in limit.seconds_by_resource.items() if seconds)
    lines = [
        "at best (a roofline: everything at its full rate, all of it at once)",
        _row("step", f"{1e3 * limit.seconds:,.2f} ms, bound by {limit.resource} (ms: {parts})"),
        _row("tokens/s", f"{plan.tokens_per_second:,.0f}, {plan.tokens_per_second / plan.topology.chips:,.0f} a chip"),
        _row("MFU at this bound", f"{100 * plan.mfu_at_bound:.1f} %"),
    ]
    if plan.run_seconds is None:
        lines.append(_row("run", "give --gin.TRAIN_STEPS=… for its time, and --price=… for its cost"))
        return lines
    total, days = plan.tokens * plan.total_steps, plan.run_seconds / SECONDS_PER_DAY
    lines.append(_row("run", f"{plan.total_steps:,} steps, {total:,} tokens: {_number(days)} days"))
    if plan.cost is not None:
        hours = plan.topology.chips * plan.run_seconds / 3600
        lines.append(_row("cost", f"{_number(plan.cost)} ({_number(hours)} chip-hours at {plan.price:g})"))
    return lines


def _compiled_in(plan: Plan) -> str:
    return f"compiled in {plan.compiled.seconds:.0f} s; nothing was run"


def _number(value: float) -> str:
    """Two decimals, or two digits of what is smaller than one."""
    return f"{value:,.2f}" if value >= 1 else f"{value:.2g}"


def _row(name: str, value: str) -> str:
    return f"  {name:<34}{value}"


def _gib(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB / 100 else f"{count / 2**20:.2f} MiB"
