"""Ranks combinations of microbatches, remat, mesh and rules by an estimate, so that only the best ones are compiled."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from t5x_like import parameters, partitioning
from t5x_like.axis_rules import INPUT_TOKENS_SUFFIX, KV_HEADS
from t5x_like.kernels import chunks
from t5x_like.layers.stacks import REMAT_POLICIES
from t5x_like.objectives.base import Objective
from t5x_like.objectives.gathering import Gathering
from t5x_like.planning import report, tracing
from t5x_like.planning.chips import GIB
from t5x_like.planning.topologies import Topology
from t5x_like.training.program import Program
from t5x_like.training.recipe import Recipe

# Searched numbers of microbatches and sizes of the mesh axis `tensor`.
MICROBATCHES = (1, 2, 4, 8, 16, 32)
TENSOR_SIZES = (1, 2, 4, 8)
# Rules that split the positions of the residual stream over `tensor` between blocks.
RESIDUAL_RULES = "fsdp_tp_residual"
GRADIENT_ELEMENT_BYTES = 4  # gradients are float32
COLLECTIVE_ELEMENT_BYTES = 2  # weights are gathered, and their gradients reduced, in bfloat16
# Memory of a step that the estimate does not count: the logits of a chunk and their gradient, the gathered weights of a
# layer, and the program. Chunks of GPUs are larger: `LOGITS_BYTES` are those of a logit and of its gradient.
SLACK_BYTES = 2 * GIB
LOGITS_BYTES = 6
# Largest fraction of the memory that an estimate may use. Compiled steps needed up to 5 GiB more than estimated, for
# scheduling.
MAX_HBM_FRACTION = 0.9
# From this number of devices, the compiler reduces gradients along an axis that spans the whole slice with an
# all-reduce, which sends twice as many bytes as a reduce-scatter (planned on v4, v5e, v5p and v6e; not for 16 devices,
# and not for an axis that spans part of a slice). Weights count as gathered at any number of devices, which on v4, v5p
# and v6e needs the options of `hardware/CHIP.gin`. `hardware/tpu7x.gin` sets none for it.
ALL_REDUCE_DEVICES = 64


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A configuration of a step on a slice, with estimates.

    Attributes:
      microbatches: Number of microbatches per batch.
      remat: The model's rematerialization policy; None if its configuration has none.
      ici: Mesh axis -> size within the slice.
      rules: Name of the rule set.
      bytes: Estimated memory per device in bytes.
      seconds: Estimated time of a step with perfect overlap.
      serial_seconds: Estimated time of a step without overlap.
    """

    microbatches: int
    remat: str | None
    ici: dict[str, int]
    rules: str
    bytes: float
    seconds: float
    serial_seconds: float

    def __str__(self) -> str:
        remat = f", remat {self.remat}" if self.remat else ""
        estimate = f"about {self.bytes / GIB:.1f} GiB and at least {1e3 * self.seconds:.1f} ms"
        return f"{report.mesh_text(self.ici)}, rules {self.rules}, microbatches {self.microbatches}{remat}: {estimate}"

    def partitioner(self, slices: int, devices: list[Any]) -> partitioning.Partitioner:
        """Makes the partitioner of this configuration, with data parallelism across slices.

        Args:
          slices: Number of slices.
          devices: Devices of all slices.
        """
        dcn = {"data": slices} if slices > 1 else None
        return partitioning.Partitioner(rules=self.rules, ici=self.ici, dcn=dcn, devices=devices)

    def apply(self, recipe: Recipe, slices: int, devices: list[Any]) -> Recipe:
        """Returns a recipe with the model, microbatches and partitioner of this configuration.

        Args:
          recipe: Recipe of the run.
          slices: Number of slices.
          devices: Devices of all slices.

        Raises:
          UserError: JAX cannot lay out the devices as this mesh.
        """
        model = recipe.model if self.remat is None else dataclasses.replace(recipe.model, remat=self.remat)
        update = dataclasses.replace(recipe.update, microbatches=self.microbatches)
        partitioner = self.partitioner(slices, devices)
        _ = partitioner.mesh  # raises if the devices cannot be laid out
        return dataclasses.replace(recipe, model=model, update=update, partitioner=partitioner)


def candidates(
    program: Program, objective: Objective, topology: Topology, gather_parameters: Gathering = "per_use"
) -> list[Candidate]:
    """Lists the configurations that divide evenly and fit by the estimate.

    Args:
      program: The program as the user configured it. The search replaces its microbatches, remat, mesh and rules.
      objective: The objective of the run.
      topology: The slices.
      gather_parameters: As in `train`. `per_step` needs meshes of data x fsdp, and memory for all parameters.

    Returns:
      Configurations, the fastest first.
    """
    leaves = _leaves(program)
    # The width of the model, not of its teachers: their forward passes save nothing.
    embed = max((size for leaf in leaves if leaf.passes == 2 for axis, size in leaf.dims if axis == "embed"), default=0)
    rows = next(iter(program.batch_shapes.values()))[0]
    lengths = [shape[1] for name, shape in program.batch_shapes.items() if name.endswith(INPUT_TOKENS_SUFFIX)]
    # A row is traced for one of the devices, with their kernels. The mesh would not divide it.
    mesh = program.partitioner.mesh
    device = partitioning.Partitioner(devices=[mesh.devices.flat[0]], attention=program.partitioner.attention)
    per_step = gather_parameters == "per_step"
    found = []
    with device.bound():
        for remat in REMAT_POLICIES if hasattr(program.config, "remat") else (None,):
            config = program.config if remat is None else dataclasses.replace(program.config, remat=remat)
            row_cost = tracing.row_cost(config, objective, program.shapes, program.batch_shapes, embed)
            for ici in meshes(topology, leaves):
                if per_step and ici["tensor"] > 1:
                    continue  # `gathering.check` refuses it
                shards = ici["data"] * ici["fsdp"] * topology.slices
                numbers = [number for number in MICROBATCHES if rows % (shards * number) == 0]
                for rules, number in itertools.product(rule_sets(ici, lengths), numbers):
                    one = _Estimate(program, leaves, row_cost, ici, number, topology, rules=rules, per_step=per_step)
                    found.append(Candidate(number, remat, ici, rules, one.bytes, max(one.seconds), sum(one.seconds)))
    fitting = [one for one in found if one.bytes <= MAX_HBM_FRACTION * topology.chip.hbm_bytes]
    return sorted(fitting, key=lambda one: (round(one.seconds, 6), one.serial_seconds, one.bytes))


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """An array that a run keeps, with (logical axis, size) per dimension and its bytes.

    A trained parameter has a gradient. `passes` is the number of passes that read a parameter: forward and backward, or
    only forward for teachers; 0 for the optimizer state.
    """

    dims: tuple[tuple[str | None, int], ...]
    bytes: float
    is_trained: bool
    passes: int

    @property
    def size(self) -> int:
        return math.prod(size for _, size in self.dims)

    def num_shards(self, ici: Mapping[str, int]) -> int:
        """Returns the number of shards: `embed` is sharded over `fsdp`, one other axis over `tensor`."""
        sizes = dict(self.dims)
        fsdp = ici["fsdp"] if "embed" in sizes else 1
        # Few key/value heads are replicated; the others are divisible, see `meshes`.
        split = {"vocab", "mlp", "heads"} & set(sizes) or sizes.get(KV_HEADS, 1) % ici["tensor"] == 0
        return fsdp * (ici["tensor"] if split else 1)


def _leaves(program: Program) -> list[_Leaf]:
    state, frozen = program.shapes
    trees = [(state.params, True, 2), (frozen.params, False, 2), (frozen.teachers, False, 1)]
    leaves = []
    for tree, is_trained, passes in [*trees, (state.opt_state, False, 0), (state.average, False, 0)]:
        axes = parameters.logical_axes(tree)
        for name, leaf in parameters.named_leaves(tree).items():
            dims = tuple(zip(axes[name], leaf.shape, strict=True))
            leaves.append(_Leaf(dims, leaf.size * leaf.dtype.itemsize, is_trained, passes))
    return leaves


def meshes(topology: Topology, leaves: list[_Leaf]) -> Iterator[dict[str, int]]:
    """Enumerates meshes of data x fsdp x tensor over a slice that divide every parameter evenly.

    Args:
      topology: The slices.
      leaves: The parameters and the optimizer state.

    Yields:
      Mesh axis -> size within the slice.
    """
    devices = topology.num_devices // topology.slices
    for tensor in TENSOR_SIZES:
        for fsdp in range(1, devices // tensor + 1):
            if devices % (tensor * fsdp):
                continue
            sizes = {"embed": fsdp, "vocab": tensor, "mlp": tensor, "heads": tensor}
            if all(size % sizes.get(axis, 1) == 0 for leaf in leaves for axis, size in leaf.dims):
                yield {"data": devices // (tensor * fsdp), "fsdp": fsdp, "sequence": 1, "tensor": tensor}


def rule_sets(ici: Mapping[str, int], lengths: Sequence[int]) -> tuple[str, ...]:
    """Returns the names of the rule sets that are searched for a mesh.

    Args:
      ici: Mesh axis -> size within the slice.
      lengths: Lengths of the rows that the model reads. The residual stream of other lengths is not split.
    """
    tensor = ici["tensor"]
    if tensor == 1:
        return ("fsdp",)
    return ("fsdp_tp",) if any(length % tensor for length in lengths) else ("fsdp_tp", RESIDUAL_RULES)


class _Estimate:
    """Estimated memory in bytes and times in seconds of a configuration.

    The times are for compute, memory traffic, communication within slices and communication across slices.
    """

    def __init__(self, program, leaves, row_cost, ici, microbatches, topology, *, rules, per_step):
        self._leaves, self._ici, self._microbatches, self._topology = leaves, ici, microbatches, topology
        self._per_step = per_step
        chip, shapes = topology.chip, list(program.batch_shapes.values())
        self._rows = shapes[0][0] / (ici["data"] * ici["fsdp"] * topology.slices)
        self._length = sum(math.prod(shape[1:]) for shape in shapes) / len(shapes)
        # Arrays with a last dimension `embed` have all positions on each device of `tensor`, or a shard of them.
        shards = ici["tensor"] if rules == RESIDUAL_RULES else 1
        residuals = self._rows * (row_cost.residual_bytes / ici["tensor"] + row_cost.unsplit_residual_bytes / shards)
        # Each device has the state that networks carry from batch to batch for its own rows.
        carry = (
            self._rows / shapes[0][0] * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(program.shapes[0].carry))
        )
        static = carry + sum(leaf.bytes / leaf.num_shards(ici) for leaf in leaves)
        used = [leaf for leaf in leaves if leaf.passes]
        trained = [leaf for leaf in leaves if leaf.is_trained]
        if per_step:  # a device holds all parameters in bfloat16, and the sum of all gradients
            read = gathered = sum(COLLECTIVE_ELEMENT_BYTES * leaf.size for leaf in used)
            held = gathered + sum(GRADIENT_ELEMENT_BYTES * leaf.size for leaf in trained)
        else:
            read = sum(leaf.bytes / leaf.num_shards(ici) for leaf in used)
            gradients = sum(GRADIENT_ELEMENT_BYTES * leaf.size / leaf.num_shards(ici) for leaf in trained)
            held = gradients * (2 if microbatches > 1 else 1)  # the accumulated sum and the gradients of a microbatch
        self.bytes = static + held + residuals / microbatches + SLACK_BYTES + self._larger_chunk()
        within, across = self._sent()
        self.seconds = (
            row_cost.flops * self._rows / ici["tensor"] / chip.peak_flops,
            2 * (residuals + static + read * (microbatches - 1)) / chip.hbm_bandwidth,  # each microbatch reads `read`
            within / topology.ici_bandwidth,
            across / chip.dcn_bandwidth,
        )

    def _larger_chunk(self) -> float:
        """Returns the bytes of the logits of a chunk that are more than those of the smallest chunk on TPUs."""
        positions = min(chunks.min_positions(), self._rows / self._microbatches * self._length)
        vocab = max((size for leaf in self._leaves for axis, size in leaf.dims if axis == "vocab"), default=0)
        return LOGITS_BYTES * vocab / self._ici["tensor"] * max(0, positions - chunks.MIN_POSITIONS)

    def _sent(self) -> tuple[float, float]:
        """Returns the bytes that a device sends within its slice and to other slices."""
        ici, slices = self._ici, self._topology.slices
        devices = math.prod(ici.values())
        reduction = 2 if ici["fsdp"] == devices >= ALL_REDUCE_DEVICES else 1
        within = across = 0.0
        for leaf in self._leaves:
            if not leaf.passes:
                continue
            axes = [axis for axis, _ in leaf.dims]
            sent = COLLECTIVE_ELEMENT_BYTES * leaf.size / leaf.num_shards({**ici, "fsdp": 1})
            shard = COLLECTIVE_ELEMENT_BYTES * leaf.size / leaf.num_shards(ici)
            # A sharded weight is gathered in each pass and its gradient reduced to shards; with `per_step`, both happen
            # once per step. The gradient of a weight that is not sharded is all-reduced.
            gathers = 1 if self._per_step else leaf.passes
            sharded = gathers + leaf.is_trained * reduction
            times = sharded if "embed" in axes else 2 * leaf.is_trained
            within += times * sent * _ring_fraction(ici["fsdp"])
            if leaf.is_trained:
                within += 2 * shard * _ring_fraction(ici["data"])
                across += 2 * shard * _ring_fraction(slices)
            inner = axes[1:] if axes[:1] == [parameters.LAYERS] else axes
            # The products with these weights are all-reduced, or scattered and gathered, over `tensor` in each pass.
            if inner and inner[0] in ("heads", "mlp"):
                layers = leaf.dims[0][1] if axes[:1] == [parameters.LAYERS] else 1
                width = dict(leaf.dims).get("embed", 1)
                sums = layers * self._rows / self._microbatches * self._length * width * COLLECTIVE_ELEMENT_BYTES
                within += leaf.passes * 2 * sums * _ring_fraction(ici["tensor"])
        repeats = 1 if self._per_step else self._microbatches
        return within * repeats, across * repeats


def _ring_fraction(devices: int) -> float:
    """Returns the fraction of an array that a device sends in a ring all-gather or reduce-scatter."""
    return (devices - 1) / devices
