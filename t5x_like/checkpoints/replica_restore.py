"""Reads a checkpoint in one replica of the mesh, which broadcasts it to the others.

Otherwise every slice of a run with data parallelism across slices reads the whole checkpoint from the bucket.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from flax.traverse_util import flatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_like.checkpoints.checkpoint_store import only_processes, restore_arguments
from t5x_like.errors import UserError
from t5x_like.mesh import MESH_AXES

# Replicas lie along the axis of pure data parallelism, over which no rule set shards parameters.
_AXIS = MESH_AXES.index("data")
# Arrays are broadcast in groups of at most this size per device, so that memory stays bounded.
_BROADCAST_BYTES = 1 << 30


def check_mesh(mesh: Mesh) -> None:
    """Checks that each process belongs to one replica.

    Raises:
      UserError: It does not, or there is only one replica.
    """
    replicas = [_processes(replica.flat) for replica in mesh.devices]
    if not separate_replicas(mesh):
        raise UserError(
            f"restore_one_replica=True: the mesh {dict(mesh.shape)} has {len(replicas)} replicas along `data` with the "
            f"processes {replicas}. Give --gin.DCN=\"{{'data': -1}}\" for a replica per slice, "
            "or restore_one_replica=False."
        )


def separate_replicas(mesh: Mesh) -> list[list[int]]:
    """Returns the processes of each replica; empty if a process belongs to several, or there is only one replica."""
    replicas = [_processes(replica.flat) for replica in mesh.devices]
    shared = sum(map(len, replicas)) > len(set().union(*replicas))
    return [] if len(replicas) < 2 or shared else replicas


def is_replicated(leaf: jax.ShapeDtypeStruct) -> bool:
    """Returns whether every replica holds the whole array; custom rules may shard arrays over `data`."""
    axes = [axis for entry in leaf.sharding.spec for axis in (entry if isinstance(entry, tuple) else (entry,))]
    return MESH_AXES[_AXIS] not in axes


def read(directory: epath.Path, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads arrays in the processes of the first replica and broadcasts them to the others.

    Args:
      directory: The item `state` of a checkpoint.
      shapes: Name -> shape, dtype and sharding, over one mesh, of arrays that `is_replicated`.

    Returns:
      The arrays by name.

    Raises:
      UserError: A process belongs to several replicas, or there is only one replica.
    """
    mesh = next(iter(shapes.values())).sharding.mesh
    check_mesh(mesh)
    processes = _processes(mesh.devices[0].flat)
    logging.info("the processes %s read %s and broadcast it to %d replicas", processes, directory, len(mesh.devices))
    return broadcast(functools.partial(_read_in_processes, directory, processes), shapes, source=0)


def _read_in_processes(
    directory: epath.Path, processes: Sequence[int], shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Reads arrays in some processes only, which do not wait for the others."""
    handler = ocp.PyTreeCheckpointHandler(
        multiprocessing_options=only_processes(processes, "one_replica"),
        type_handler_registry=ocp.type_handlers.create_type_handler_registry(
            (jax.Array, ocp.type_handlers.ArrayHandler(primary_host=min(processes)))
        ),
    )
    restored = handler.restore(directory, args=ocp.args.PyTreeRestore(**restore_arguments(shapes)))
    handler.close()
    return flatten_dict(restored, sep="/")


def broadcast(
    read: Callable[[Mapping[str, jax.ShapeDtypeStruct]], Mapping[str, jax.Array]],
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    source: int,
) -> dict[str, jax.Array]:
    """Reads arrays in the processes of one replica and broadcasts their bits to the others.

    Args:
      read: Reads arrays, whose shardings are over the devices of the replica; only called in its processes.
      shapes: Name -> shape, dtype and sharding, over one mesh, of arrays that `is_replicated`.
      source: Index of the replica.

    Returns:
      The arrays by name.
    """
    mesh = next(iter(shapes.values())).sharding.mesh
    replica = Mesh(mesh.devices[source : source + 1], mesh.axis_names)
    arrays: Mapping[str, jax.Array] = {}
    if jax.process_index() in _processes(replica.devices.flat):
        arrays = read(
            {
                name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(replica, leaf.sharding.spec))
                for name, leaf in shapes.items()
            }
        )
    result: dict[str, jax.Array] = {}
    for group in _groups(shapes):
        parts = {name: _with_replica_axis(arrays.get(name), shapes[name]) for name in group}
        result |= jax.block_until_ready(_merge_program(tuple((name, shapes[name]) for name in group))(parts))
    return result


def _groups(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> Iterable[list[str]]:
    group: list[str] = []
    used = 0
    for name, leaf in shapes.items():
        size = np.prod(leaf.sharding.shard_shape(leaf.shape), dtype=int) * leaf.dtype.itemsize
        if group and used + size > _BROADCAST_BYTES:
            yield group
            group, used = [], 0
        group.append(name)
        used += size
    if group:
        yield group


def _bits(dtype: jnp.dtype) -> jnp.dtype:
    """Returns the unsigned type whose sum with zeros is exact for every value, such as -0.0."""
    return jnp.dtype(f"uint{8 * dtype.itemsize}")


def _with_replica_axis(array: jax.Array | None, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns `[replicas, …]` with the bits of `array` in its replica, and zeros in the others."""
    mesh, bits = leaf.sharding.mesh, _bits(leaf.dtype)
    held = {} if array is None else {shard.device: shard.data for shard in array.addressable_shards}
    shards = []
    for device in leaf.sharding.addressable_devices:
        if device in held:
            data = np.asarray(held[device]).view(bits)
        else:
            data = np.zeros(leaf.sharding.shard_shape(leaf.shape), bits)
        shards.append(jax.device_put(data[None], device))
    sharding = NamedSharding(mesh, PartitionSpec(MESH_AXES[_AXIS], *leaf.sharding.spec))
    return jax.make_array_from_single_device_arrays((len(mesh.devices), *leaf.shape), sharding, shards)


def _merge_program(shapes: Iterable[tuple[str, jax.ShapeDtypeStruct]]) -> Callable:
    wanted = dict(shapes)

    def merge(parts):
        sums = {name: part.sum(0, dtype=part.dtype) for name, part in parts.items()}
        return {name: _from_bits(each, wanted[name].dtype) for name, each in sums.items()}

    return jax.jit(merge, out_shardings={name: leaf.sharding for name, leaf in wanted.items()})


def _from_bits(array: jax.Array, dtype: jnp.dtype) -> jax.Array:
    return array.astype(bool) if dtype.kind == "b" else jax.lax.bitcast_convert_type(array, dtype)


def _processes(devices: Iterable[jax.Device]) -> list[int]:
    return sorted({device.process_index for device in devices})
