"""Collectives in HLO: who talks to whom along which mesh axes, and how many bytes a device sends."""

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np

from t5x_like.planning.hlo import Instruction

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
UNKNOWN_AXIS = "unknown"


@dataclasses.dataclass(frozen=True)
class DeviceMesh:
    """The mesh as the program numbers it: device i of the program is the i-th of the mesh.

    Attributes:
      axes: name -> size, the last one varying fastest.
      slices: for each device the slice that it is in.
    """

    axes: dict[str, int]
    slices: tuple[int, ...]

    def axis_of(self, groups: Sequence[Sequence[int]]) -> str:
        """The mesh axes along which the devices of a group differ, such as `fsdp` or `fsdp+tensor`."""
        names, shape = list(self.axes), tuple(self.axes.values())
        varying: set[str] = set()
        for group in groups:
            if max(group) >= math.prod(shape):
                return UNKNOWN_AXIS
            coordinates = np.stack(np.unravel_index(np.asarray(group), shape), axis=1)
            differs = (coordinates != coordinates[0]).any(axis=0)
            varying |= {name for name, differs_here in zip(names, differs, strict=True) if differs_here}
        return "+".join(name for name in names if name in varying) or "none"

    @property
    def slice_axes(self) -> str:
        """The mesh axes along which one gets from slice to slice."""
        shape = tuple(self.axes.values())
        grid = np.asarray(self.slices).reshape(shape)
        return (
            "+".join(name for dim, name in enumerate(self.axes) if (grid != grid.take([0], axis=dim)).any()) or "none"
        )

    def num_slices_of(self, group: Sequence[int]) -> int:
        """In how many slices the devices of a group are."""
        return len({self.slices[device] for device in group if device < len(self.slices)})


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective, run once.

    Attributes:
      kind: one of `KINDS`.
      axis: mesh axes that it runs along.
      bytes: that a device sends to others of its slice.
      dcn_bytes: that a device sends to other slices.
    """

    kind: str
    axis: str
    bytes: float
    dcn_bytes: float = 0.0


def collective(
    instruction: Instruction, operand_bytes: float, mesh: DeviceMesh, *, within: str = ""
) -> Collective | None:
    """What a device sends in a collective; None for any other instruction.

    In a ring of n devices each sends (n - 1) / n of the whole in an all-gather, reduce-scatter or all-to-all, and twice
    that in an all-reduce, which is the two former in a row. Where the n devices are in s slices, there is a ring within
    each slice, and one across slices for the share that a device has then. In a permutation a device sends what it has.

    Args:
      instruction: it.
      operand_bytes: what it reads.
      mesh: the program's devices.
      within: the computation that it stands in. The TPU compiler writes a reduce-scatter as an all-reduce and a slice
        in a computation of that name.
    """
    kind = next((kind for kind in KINDS if instruction.opcode in (kind, f"{kind}-start")), None)
    if kind is None:
        return None
    if kind == "all-reduce" and within.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"
    if kind == "collective-permute":
        pairs = [pair for pair in _pairs(instruction.attributes) if pair[0] != pair[1]]
        if not pairs:
            return Collective(kind, mesh.axis_of([]), 0.0)
        crosses = any(mesh.num_slices_of(pair) > 1 for pair in pairs)
        inside, across = (0.0, operand_bytes) if crosses else (operand_bytes, 0.0)
        return Collective(kind, mesh.axis_of(pairs), inside, across)
    groups = replica_groups(instruction.attributes, len(mesh.slices))
    size = max(len(group) for group in groups)
    slices = max(mesh.num_slices_of(group) for group in groups)
    whole = operand_bytes * size if kind == "all-gather" else operand_bytes
    whole *= 2.0 if kind == "all-reduce" else 1.0
    inside = size // slices
    return Collective(kind, mesh.axis_of(groups), whole * (inside - 1) / inside, whole / inside * (slices - 1) / slices)


_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(?P<kind>[A-Z_]+)"')


def inter_slice_collective(instruction: Instruction, operand_bytes: float, mesh: DeviceMesh) -> Collective | None:
    """What a device sends to other slices; None for any instruction but such a `send`.

    In a program for several slices a collective runs within each of them, and what is left for the network between them
    is a `send` to the host, which says what kind of collective it is a part of.
    """
    match = _BETWEEN_SLICES.search(instruction.attributes) if instruction.opcode == "send" else None
    if match is None:
        return None
    kind = match["kind"].lower().replace("_", "-")
    kind = kind if kind in KINDS else "collective-permute"
    slices = len(set(mesh.slices))
    factor = {"all-reduce": 2.0 * (slices - 1) / slices, "all-gather": slices - 1.0, "collective-permute": 1.0}
    sent = operand_bytes * factor.get(kind, (slices - 1) / slices)
    return Collective(kind, mesh.slice_axes, 0.0, sent)


def _pairs(attributes: str) -> list[list[int]]:
    match = re.search(r"source_target_pairs=\{(.*?)\}\}", attributes)
    return [[int(a), int(b)] for a, b in re.findall(r"(\d+),(\d+)", match[1])] if match else []


def replica_groups(attributes: str, num_devices: int) -> list[list[int]]:
    """The groups of devices of a collective, in any of the ways in which HLO writes them.

    `{{0,1},{2,3}}`; `[2,2]<=[4]`; `[2,2]<=[2,2]T(1,0)`; `mesh['a'=2,'b'=2] {'b'}`; nothing, for all devices together.
    """
    if match := re.search(r"replica_groups=\{(\{.*?\})\}", attributes):
        return [[int(number) for number in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", match[1])]
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes):
        rows, columns = int(match[1]), int(match[2])
        ids = _transposed(_sizes(match[3]), _sizes(match[4]) if match[4] else None)
        return ids.reshape(rows, columns).tolist()
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\][^{,]*\{([^}]*)\}", attributes):
        names, sizes = zip(*re.findall(r"'([^']+)'=(\d+)", match[1]), strict=True)
        return _along(names, tuple(int(size) for size in sizes), re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", match[2]))
    return [list(range(num_devices))]


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _transposed(shape: tuple[int, ...], permutation: tuple[int, ...] | None) -> np.ndarray:
    ids = np.arange(math.prod(shape)).reshape(shape)
    return ids.transpose(permutation) if permutation else ids


def _along(names: Sequence[str], sizes: tuple[int, ...], axes: Sequence[tuple[str, str, str]]) -> list[list[int]]:
    """Groups along some axes of a mesh; an axis may be a part of one, `'a':(m)k`: k places, m apart from the front."""
    split_sizes: list[int] = []
    grouped: list[bool] = []
    parts = {name: (int(before or 1), int(size or 0)) for name, before, size in axes}
    for name, size in zip(names, sizes, strict=True):
        if name not in parts:
            split_sizes.append(size)
            grouped.append(False)
            continue
        before, wanted = parts[name]
        wanted = wanted or size
        split_sizes += [before, wanted, size // (before * wanted)]
        grouped += [False, True, False]
    order = [i for i, inside in enumerate(grouped) if not inside] + [i for i, inside in enumerate(grouped) if inside]
    ids = np.arange(math.prod(split_sizes)).reshape(split_sizes).transpose(order)
    group = math.prod(size for size, inside in zip(split_sizes, grouped, strict=True) if inside)
    return ids.reshape(-1, group).tolist()
