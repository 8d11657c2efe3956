"""Collectives in HLO: their mesh axes and the bytes that a device sends."""

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np

from t5x_like.planning.hlo import Instruction

RAGGED_ALL_TO_ALL = "ragged-all-to-all"
KINDS = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    RAGGED_ALL_TO_ALL,
    "collective-permute",
    "collective-broadcast",
)
UNKNOWN_AXIS = "unknown"


@dataclasses.dataclass(frozen=True)
class DeviceMesh:
    """The mesh of a program. Device i of the program is the i-th device of the mesh.

    Attributes:
      axes: Mesh axis -> size. The last axis varies fastest.
      slices: Slice of each device.
      coordinates: Position of the chip of each device in the torus of its slice; empty if unknown.
    """

    axes: dict[str, int]
    slices: tuple[int, ...]
    coordinates: tuple[tuple[int, ...], ...] = ()

    def axis_of(self, groups: Sequence[Sequence[int]]) -> str:
        """Returns the mesh axes along which the devices within a group differ.

        Args:
          groups: Groups of device numbers.

        Returns:
          Axes such as `fsdp` or `fsdp+tensor`; `none` for groups of one device; `UNKNOWN_AXIS` for unknown devices.
        """
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
        """Mesh axes that span slices, such as `data`; `none` for a single slice."""
        shape = tuple(self.axes.values())
        grid = np.asarray(self.slices).reshape(shape)
        return (
            "+".join(name for dim, name in enumerate(self.axes) if (grid != grid.take([0], axis=dim)).any()) or "none"
        )

    def group_of(self, axis: str) -> list[int]:
        """Returns the devices with coordinates that differ from device 0 along the given axes only, in its slice.

        Args:
          axis: Axes as `axis_of` returns them. An unknown axis means all axes.
        """
        names = axis.split("+") if axis != UNKNOWN_AXIS else list(self.axes)
        ids = np.arange(len(self.slices)).reshape(tuple(self.axes.values()))
        ids = ids[tuple(slice(None) if name in names else 0 for name in self.axes)]
        return [int(one) for one in ids.flat if one < len(self.coordinates) and self.slices[one] == self.slices[0]]

    def num_slices_of(self, group: Sequence[int]) -> int:
        """Returns the number of slices of a group of devices."""
        return len({self.slices[device] for device in group if device < len(self.slices)})


@dataclasses.dataclass(frozen=True)
class Collective:
    """A single execution of a collective.

    Attributes:
      kind: One of `KINDS`.
      axis: Mesh axes of the collective; see `DeviceMesh.axis_of`.
      bytes: Bytes that a device sends to devices of its slice.
      dcn_bytes: Bytes that a device sends to other slices.
    """

    kind: str
    axis: str
    bytes: float
    dcn_bytes: float = 0.0


def is_reduce_scatter(computation: str) -> bool:
    """Returns whether an all-reduce in a computation is a reduce-scatter.

    The TPU compiler writes a reduce-scatter as an all-reduce and a slice in a computation `all-reduce-scatter…`.

    Args:
      computation: Name of the computation.
    """
    return computation.startswith("all-reduce-scatter")


def collective(
    instruction: Instruction, operand_bytes: float, mesh: DeviceMesh, *, within: str = ""
) -> Collective | None:
    """Computes what a device sends in a collective.

    In a ring of n devices, a device sends (n - 1) / n of the whole array in an all-gather, reduce-scatter or
    all-to-all. It sends twice as much in an all-reduce, which is a reduce-scatter followed by an all-gather. If the n
    devices belong to s slices, the model is a ring within each slice, and a ring across slices for the shard of a
    device; in an all-to-all, (s - 1) / s of the operand is for devices of other slices. In a permutation or a
    broadcast, a device sends its operand. A ragged all-to-all counts as an all-to-all of its input.

    Args:
      instruction: Any instruction.
      operand_bytes: Bytes of the operands.
      mesh: The devices of the program.
      within: Name of the enclosing computation; see `is_reduce_scatter`.

    Returns:
      The collective; None for other instructions.
    """
    kind = next((kind for kind in KINDS if instruction.opcode in (kind, f"{kind}-start")), None)
    if kind is None:
        return None
    if kind == "all-reduce" and is_reduce_scatter(within):
        kind = "reduce-scatter"
    if kind == "collective-permute":
        pairs = [pair for pair in _source_target_pairs(instruction.attributes) if pair[0] != pair[1]]
        if not pairs:
            return Collective(kind, mesh.axis_of([]), 0.0)
        crosses = any(mesh.num_slices_of(pair) > 1 for pair in pairs)
        inside, across = (0.0, operand_bytes) if crosses else (operand_bytes, 0.0)
        return Collective(kind, mesh.axis_of(pairs), inside, across)
    groups = replica_groups(instruction.attributes, len(mesh.slices))
    size = max(len(group) for group in groups)
    slices = max(mesh.num_slices_of(group) for group in groups)
    per_slice = size // slices
    if kind in ("all-to-all", RAGGED_ALL_TO_ALL):
        inside, across = operand_bytes * (per_slice - 1) / size, operand_bytes * (slices - 1) / slices
        return Collective(kind, mesh.axis_of(groups), inside, across)
    if kind == "collective-broadcast":
        inside, across = (operand_bytes, 0.0) if slices == 1 else (0.0, operand_bytes)
        return Collective(kind, mesh.axis_of(groups), inside * (size > 1), across)
    whole = operand_bytes * size if kind == "all-gather" else operand_bytes
    whole *= 2.0 if kind == "all-reduce" else 1.0
    within_slice, across_slices = (per_slice - 1) / per_slice, (slices - 1) / slices / per_slice
    return Collective(kind, mesh.axis_of(groups), whole * within_slice, whole * across_slices)


_TRANSFER_TYPE = re.compile(r'_xla_megascale_transfer_type="(?P<kind>[A-Z_]+)"')


def inter_slice_collective(instruction: Instruction, operand_bytes: float, mesh: DeviceMesh) -> Collective | None:
    """Computes what a device sends to other slices.

    In a program for several slices, a collective runs within each slice. The communication across slices is a `send` to
    the host, whose attributes name the kind of collective.

    Args:
      instruction: Any instruction.
      operand_bytes: Bytes of the operands.
      mesh: The devices of the program.

    Returns:
      The collective across slices; None for instructions other than such a `send`.
    """
    match = _TRANSFER_TYPE.search(instruction.attributes) if instruction.opcode == "send" else None
    if match is None:
        return None
    kind = match["kind"].lower().replace("_", "-")
    kind = kind if kind in KINDS else "collective-permute"
    slices = len(set(mesh.slices))
    factors = {"all-reduce": 2.0 * (slices - 1) / slices, "all-gather": slices - 1.0}
    factors |= dict.fromkeys(("collective-permute", "collective-broadcast"), 1.0)
    sent = operand_bytes * factors.get(kind, (slices - 1) / slices)
    return Collective(kind, mesh.slice_axes, 0.0, sent)


def _source_target_pairs(attributes: str) -> list[list[int]]:
    if match := re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes):
        return [[int(a), int(b)] for a, b in re.findall(r"(\d+),(\d+)", match[1])]
    raise _unreadable("source_target_pairs=", attributes)


def _unreadable(name: str, attributes: str) -> ValueError:
    return ValueError(
        "the devices of a collective are in a notation that this version cannot read: "
        f"{name}{attributes.partition(name)[2][:100]}. Use the version of libtpu in constraints.txt."
    )


_MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[(?P<mesh>[^\]]*)\]"
    r"(?:, device_ids=\((?:\[(?P<order>[\d,]+)\](?:T\((?P<permutation>[\d,]+)\))?|(?P<listed>[\d,]+))\))?"
    r" *\{(?P<axes>[^}]*)\}"
)


def replica_groups(attributes: str, num_devices: int) -> list[list[int]]:
    """Parses the groups of devices of a collective.

    HLO has several notations: `{{0,1},{2,3}}`, `[2,2]<=[4]`, `[2,2]<=[2,2]T(1,0)` and `mesh['a'=2,'b'=2] {'b'}`, or
    `mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}` for a mesh with another order of devices. If the attribute is
    missing or empty, all devices are one group.

    Args:
      attributes: Attributes of the instruction.
      num_devices: Number of devices of the program.

    Returns:
      Groups of device numbers.

    Raises:
      ValueError: For another notation.
    """
    if match := re.search(r"replica_groups=\{(\{.*?\})\}", attributes):
        return [[int(number) for number in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", match[1])]
    if match := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes):
        rows, columns = int(match[1]), int(match[2])
        ids = _transposed(_sizes(match[3]), _sizes(match[4]) if match[4] else None)
        return ids.reshape(rows, columns).tolist()
    if match := _MESH_GROUPS.search(attributes):
        names, sizes = zip(*re.findall(r"'([^']+)'=(\d+)", match["mesh"]), strict=True)
        sizes = tuple(map(int, sizes))
        if match["listed"]:
            ids = np.asarray(_sizes(match["listed"]))
        else:
            order = _sizes(match["order"]) if match["order"] else sizes
            ids = _transposed(order, _sizes(match["permutation"]) if match["permutation"] else None)
        return _groups_along(names, sizes, re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", match["axes"]), ids)
    if "replica_groups=" in attributes and "replica_groups={}" not in attributes:
        raise _unreadable("replica_groups=", attributes)
    return [list(range(num_devices))]


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _transposed(shape: tuple[int, ...], permutation: tuple[int, ...] | None) -> np.ndarray:
    ids = np.arange(math.prod(shape)).reshape(shape)
    return ids.transpose(permutation) if permutation else ids


def _groups_along(
    names: Sequence[str], sizes: tuple[int, ...], axes: Sequence[tuple[str, str, str]], ids: np.ndarray
) -> list[list[int]]:
    """Returns the groups along some axes of a mesh with the given devices, in row-major order.

    An axis may be a sub-axis `'a':(m)k` of size k, where m is the product of the sizes of the sub-axes before it.
    """
    split_sizes: list[int] = []
    grouped: list[bool] = []
    sub_axes = {name: (int(before or 1), int(size or 0)) for name, before, size in axes}
    for name, size in zip(names, sizes, strict=True):
        if name not in sub_axes:
            split_sizes.append(size)
            grouped.append(False)
            continue
        before, sub_size = sub_axes[name]
        sub_size = sub_size or size
        split_sizes += [before, sub_size, size // (before * sub_size)]
        grouped += [False, True, False]
    order = [i for i, inside in enumerate(grouped) if not inside] + [i for i, inside in enumerate(grouped) if inside]
    group = math.prod(size for size, inside in zip(split_sizes, grouped, strict=True) if inside)
    return ids.reshape(split_sizes).transpose(order).reshape(-1, group).tolist()
