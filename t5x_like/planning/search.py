"""Ranking microbatches x remat x mesh by arithmetic, so that only the most promising are compiled."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from t5x_like import optimizers, parameters, partitioning
from t5x_like.layers.stacks import REMAT_POLICIES
from t5x_like.planning import report, tracing
from t5x_like.planning.chips import GIB
from t5x_like.planning.topologies import Topology
from t5x_like.training.program import Program

MICROBATCHES = (1, 2, 4, 8, 16, 32)
TENSOR = (1, 2, 4, 8)
# Gradients are float32; kernels are gathered, and their gradients summed, in bfloat16.
GRADIENT_BYTES, SENT_BYTES = 4, 2
# What a step holds beside what is counted: logits of a chunk with their gradient, a gathered layer, the program.
SLACK_BYTES = 2 * GIB
# The estimate leaves out what the compiler needs for scheduling: compiled steps took up to 5 GiB more.
USED_AT_MOST = 0.9
# From this many devices on, the compiler gathers along an axis that spans the slice by an all-reduce, which sends twice
# as much (measured: v4, v5e and v5p with libtpu 0.0.50; not so for 16 devices, or for an axis that spans a part).
WHOLE_SLICE_FROM = 64


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to run a step on a slice.

    Attributes:
      microbatches: parts of a batch.
      remat: the model's policy, or None where its configuration has none.
      ici: mesh axis -> size within the slice.
      bytes: of HBM on a device, estimated.
      seconds: a lower bound on the step, estimated.
      serial_seconds: the same if nothing overlaps.
    """

    microbatches: int
    remat: str | None
    ici: dict[str, int]
    bytes: float
    seconds: float
    serial_seconds: float

    def __str__(self) -> str:
        remat = f", remat {self.remat}" if self.remat else ""
        estimate = f"about {self.bytes / GIB:.1f} GiB and at best {1e3 * self.seconds:.1f} ms"
        return f"{report.mesh_text(self.ici)}, microbatches {self.microbatches}{remat}: {estimate}"

    @property
    def rules(self) -> str:
        return "fsdp_tp" if self.ici["tensor"] > 1 else "fsdp"

    def partitioner(self, slices: int, devices: list[Any]) -> partitioning.Partitioner:
        """Its mesh; slices are data-parallel to each other."""
        dcn = {"data": slices} if slices > 1 else None
        return partitioning.Partitioner(rules=self.rules, ici=self.ici, dcn=dcn, devices=devices)

    def arguments(self, arguments: Mapping[str, Any], slices: int, devices: list[Any]) -> dict[str, Any]:
        """The loop's arguments, changed to run it this way."""
        model = arguments["model"]
        if self.remat is not None:
            model = dataclasses.replace(model, remat=self.remat)
        partitioner = self.partitioner(slices, devices)
        return {**arguments, "model": model, "microbatches": self.microbatches, "partitioner": partitioner}


def candidates(program: Program, objective: Any, topology: Topology) -> list[Candidate]:
    """Every way that divides evenly and seems to fit, the fastest first.

    Args:
      program: as the user configured it; what is searched is replaced.
      objective: of the loop.
      topology: the slices.
    """
    leaves = _leaves(program)
    rows = next(iter(program.batch_shapes.values()))[0]
    found = []
    for remat in REMAT_POLICIES if hasattr(program.config, "remat") else (None,):
        config = program.config if remat is None else dataclasses.replace(program.config, remat=remat)
        embed = max((size for leaf in leaves for axis, size in leaf.dims if axis == "embed"), default=0)
        needs = tracing.row_cost(config, objective, program.shapes, program.batch_shapes, embed)
        for ici in meshes(topology, leaves):
            for microbatches in MICROBATCHES:
                parts = ici["data"] * ici["fsdp"] * topology.slices
                if rows % (parts * microbatches) == 0:
                    estimate = _Estimate(program, leaves, needs, ici, microbatches, topology)
                    found.append(
                        Candidate(microbatches, remat, ici, estimate.bytes, max(estimate.parts), sum(estimate.parts))
                    )
    fitting = [one for one in found if one.bytes <= USED_AT_MOST * topology.chip.hbm_bytes]
    return sorted(fitting, key=lambda one: (round(one.seconds, 6), one.serial_seconds, one.bytes))


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """A parameter or a part of the optimizer's state: its dimensions by logical axis, and its bytes."""

    dims: tuple[tuple[str | None, int], ...]
    bytes: float
    is_parameter: bool

    @property
    def size(self) -> int:
        return math.prod(size for _, size in self.dims)

    def split(self, ici: Mapping[str, int]) -> int:
        """Into how many parts it is split: `embed` over fsdp, one of the others over tensor."""
        axes = [axis for axis, _ in self.dims]
        fsdp = ici["fsdp"] if "embed" in axes else 1
        tensor = ici["tensor"] if {"vocab", "mlp", "heads"} & set(axes) else 1
        return fsdp * tensor


def _leaves(program: Program) -> list[_Leaf]:
    state, frozen = program.shapes
    trees = [(optimizers.merge(state.params, frozen), True), (state.opt_state, False)]
    leaves = []
    for tree, is_parameter in trees:
        axes = parameters.logical_axes(tree)
        for name, leaf in parameters.named_leaves(tree).items():
            dims = tuple(zip(axes[name], leaf.shape, strict=True))
            leaves.append(_Leaf(dims, leaf.size * leaf.dtype.itemsize, is_parameter))
    return leaves


def meshes(topology: Topology, leaves: list[_Leaf]) -> Iterator[dict[str, int]]:
    """Meshes of data x fsdp x tensor over one slice that divide every parameter.

    Args:
      topology: the slices.
      leaves: the parameters and the optimizer's state.

    Yields:
      Mesh axis -> size within the slice.
    """
    devices = topology.num_devices // topology.slices
    for tensor in TENSOR:
        for fsdp in range(1, devices // tensor + 1):
            if devices % (tensor * fsdp):
                continue
            sizes = {"embed": fsdp, "vocab": tensor, "mlp": tensor, "heads": tensor}
            if all(size % sizes.get(axis, 1) == 0 for leaf in leaves for axis, size in leaf.dims):
                yield {"data": devices // (tensor * fsdp), "fsdp": fsdp, "sequence": 1, "tensor": tensor}


class _Estimate:
    """Bytes and seconds of one candidate."""

    def __init__(self, program, leaves, needs, ici, microbatches, topology):
        self._leaves, self._ici, self._microbatches, self._topology = leaves, ici, microbatches, topology
        chip, shapes = topology.chip, list(program.batch_shapes.values())
        self._rows = shapes[0][0] / (ici["data"] * ici["fsdp"] * topology.slices)
        self._length = sum(shape[1] for shape in shapes) / len(shapes)
        kept = self._rows * (needs.residual_bytes / ici["tensor"] + needs.unsplit_residual_bytes)
        static = sum(leaf.bytes / leaf.split(ici) for leaf in leaves)
        gradients = sum(GRADIENT_BYTES * leaf.size / leaf.split(ici) for leaf in leaves if leaf.is_parameter)
        held = gradients * (2 if microbatches > 1 else 1)  # the sum so far, and those of one part
        self.bytes = static + held + kept / microbatches + SLACK_BYTES
        within, across = self._sent()
        self.parts = (
            needs.flops * self._rows / ici["tensor"] / chip.peak_flops,
            (2 * kept + 2 * static * microbatches) / chip.hbm_bandwidth,
            within / topology.ici_bandwidth,
            across / chip.dcn_bandwidth,
        )

    def _sent(self) -> tuple[float, float]:
        """Bytes that a device sends within its slice, and to others."""
        ici, slices = self._ici, self._topology.slices
        devices = math.prod(ici.values())
        doubled = 2 if ici["fsdp"] == devices >= WHOLE_SLICE_FROM else 1
        within = across = 0.0
        for leaf in self._leaves:
            if not leaf.is_parameter:
                continue
            axes = [axis for axis, _ in leaf.dims]
            sent = SENT_BYTES * leaf.size / leaf.split({**ici, "fsdp": 1})
            shard = SENT_BYTES * leaf.size / leaf.split(ici)
            # Gathered forward and backward, and the gradient scattered; or, where it is not split, added up.
            times = 3 * doubled if "embed" in axes else 2
            within += times * sent * _ring(ici["fsdp"]) + 2 * shard * _ring(ici["data"])
            across += 2 * shard * _ring(slices)
            inner = axes[1:] if axes[:1] == [parameters.LAYERS] else axes
            if inner and inner[0] in ("heads", "mlp"):  # sums of its products are over tensor: forward and backward
                layers = leaf.dims[0][1] if axes[:1] == [parameters.LAYERS] else 1
                width = dict(leaf.dims).get("embed", 1)
                sums = layers * self._rows / self._microbatches * self._length * width * SENT_BYTES
                within += 2 * 2 * sums * _ring(ici["tensor"])
        return within * self._microbatches, across * self._microbatches


def _ring(devices: int) -> float:
    """The share of the whole that a device of a ring sends."""
    return (devices - 1) / devices
