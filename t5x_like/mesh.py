"""Device meshes over one or several slices."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from t5x_like.errors import MachineError, UserError

MESH_AXES = ("data", "fsdp", "sequence", "tensor")


class DeviceMismatchError(MachineError):
    """A mesh does not match the devices of this machine, but may match another machine."""


def make_mesh(
    *, ici: Mapping[str, int] | None = None, dcn: Mapping[str, int] | None = None, devices: Sequence[Any] | None = None
) -> Mesh:
    """Makes a mesh with the axes `data`, `fsdp`, `sequence` and `tensor`.

    Args:
      ici: Mesh axis -> size within a slice. Missing axes have size 1. The size -1 of at most one axis stands for the
        remaining devices of a slice. The default is `{"data": -1}`.
      dcn: Mesh axis -> size across slices, which multiplies the size within a slice. The size -1 of at most one axis
        stands for the number of slices (see `count_slices`). The default has no axis across slices.
      devices: Devices of the mesh; the default is all devices.

    Returns:
      A mesh of `Auto` axes over all `devices`.

    Raises:
      UserError: An axis is unknown or a size is invalid.
      DeviceMismatchError: The sizes do not multiply to the number of devices, or JAX cannot build the mesh.
    """
    devices = list(jax.devices() if devices is None else devices)
    ici, dcn = dict(ici or {"data": -1}), dict(dcn or {})
    for which, sizes in (("ici", ici), ("dcn", dcn)):
        if unknown := sorted(set(sizes) - set(MESH_AXES)):
            raise UserError(f"{which}={sizes}: unknown mesh axes {unknown}. The mesh axes are {list(MESH_AXES)}.")
    dcn_sizes = _resolve_sizes("dcn", dcn, count_slices(devices) if -1 in dcn.values() else math.prod(dcn.values()))
    slices = math.prod(dcn_sizes)
    ici_sizes = _resolve_sizes("ici", ici, len(devices) // slices if len(devices) % slices == 0 else 0)
    if math.prod(ici_sizes) * slices != len(devices):
        known = math.prod(size for size in (*ici.values(), *dcn.values()) if size != -1)
        on_cpu = devices[0].platform == "cpu"
        raise DeviceMismatchError(
            f"a mesh of ici={ici} and dcn={dcn} does not fit {len(devices)} {devices[0].platform} devices: the sizes "
            f"multiply to {known}. Change the mesh{', or give --cpu_devices=N for N fake devices' * on_cpu}."
        )
    if slices > 1 and slices != count_slices(devices):
        raise DeviceMismatchError(
            f"dcn={dcn} multiplies to {slices}, but the devices belong to {count_slices(devices)} slices (on CPU, "
            "processes). Change DCN, or set one of its axes to -1."
        )
    axis_types = (AxisType.Auto,) * len(MESH_AXES)
    if devices[0].platform == "tpu" and slices == 1 and count_slices(devices) > 1:
        raise DeviceMismatchError(
            f"the devices belong to {count_slices(devices)} slices, but no mesh axis spans slices. Give "
            "--gin.DCN=\"{'data': -1}\", or another axis to place on the network between slices."
        )
    try:
        # Two mesh axes may share an axis of the torus: a 4x4 slice can hold fsdp=8 x tensor=2.
        if slices > 1:
            by_process = _slice_index(devices[0]) is None
            grid = mesh_utils.create_hybrid_device_mesh(
                ici_sizes, dcn_sizes, devices, process_is_granule=by_process, allow_split_physical_axes=True
            )
        else:
            grid = mesh_utils.create_device_mesh(ici_sizes, devices, allow_split_physical_axes=True)
    except (NotImplementedError, AssertionError) as error:
        raise DeviceMismatchError(
            f"ici={ici} dcn={dcn}: JAX cannot build this mesh over the {devices[0].platform} devices: {error}. "
            "Choose other sizes, or a slice whose chips form a full cuboid."
        ) from error
    return Mesh(grid, MESH_AXES, axis_types=axis_types)


def count_slices(devices: Sequence[Any]) -> int:
    """Counts the slices that the devices belong to.

    Args:
      devices: Devices of the same platform.

    Returns:
      The number of slices on TPU, of machines on GPU and of processes on CPU.
    """
    return len({slice_of(device) for device in devices})


def slice_of(device: Any) -> int:
    """Returns the slice of a TPU, the machine of a GPU or the process of a CPU."""
    index = _slice_index(device)
    return device.process_index if index is None else index


def equal_feed_shards(shards_of: Mapping[int, set[int]], shards: int) -> list[tuple[int, ...]]:
    """Returns the distinct sets of batch shards that processes hold, in order.

    Args:
      shards_of: Process -> indices of the shards of a batch that its devices hold.
      shards: Number of shards of a batch.

    Raises:
      UserError: The sets overlap or have different sizes.
    """
    feed_shards = sorted({tuple(sorted(held)) for held in shards_of.values()})
    if [shard for held in feed_shards for shard in held] != list(range(shards)) or len({*map(len, feed_shards)}) > 1:
        raise UserError(
            f"the mesh distributes the {shards} shards of a batch unevenly over {len(shards_of)} processes, which hold "
            f"the shards {feed_shards}. Give the mesh axes 'data' and 'fsdp' sizes that are multiples or divisors of "
            "the number of processes."
        )
    return feed_shards


def _slice_index(device: Any) -> int | None:
    # The descriptions of GPUs to compile for have the slice_index 0 on every machine.
    described = device.platform == "gpu" and getattr(device, "client", None) is not None
    if device.platform == "cpu" or (described and device.client.runtime_type == "compile_only_runtime"):
        return None
    # The device descriptions of a compile-only topology with a single slice have no slice_index.
    return getattr(device, "slice_index", 0 if device.platform == "tpu" else None)


def _resolve_sizes(which: str, sizes: Mapping[str, int], total: int) -> list[int]:
    """Returns the sizes of all mesh axes, with -1 replaced by `total` divided by the other sizes, rounded down."""
    resolved = [sizes.get(axis, 1) for axis in MESH_AXES]
    if resolved.count(-1) > 1:
        raise UserError(f"{which}={dict(sizes)}: only one mesh axis can be -1. Give the sizes of the others.")
    if bad := {axis: size for axis, size in sizes.items() if size < 1 and size != -1}:
        raise UserError(f"{which}={dict(sizes)}: invalid sizes {bad}. Give positive integers or -1.")
    known = math.prod(size for size in resolved if size != -1)
    return [max(total // known, 1) if size == -1 else size for size in resolved]
