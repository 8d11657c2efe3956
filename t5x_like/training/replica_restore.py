"""Reads a checkpoint in one replica of the mesh, which broadcasts it to the others.

Otherwise every slice of a run with data parallelism across slices reads the whole checkpoint from the bucket.
"""

from collections.abc import Iterable, Mapping

import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh

from t5x_like.errors import UserError
from t5x_like.mesh import MESH_AXES

# Replicas lie along the axis of pure data parallelism, over which no rule set shards parameters.
_AXIS = MESH_AXES.index("data")
# Arrays are broadcast in groups of at most this size per device, so that memory stays bounded.
_BROADCAST_BYTES = 1 << 30


def check_mesh(mesh: Mesh) -> None:
    """Checks that each process belongs to one replica.

    Raises:
      UserError: it does not, or there is only one replica.
    """
    replicas = [_processes(replica.flat) for replica in mesh.devices]
    if len(replicas) < 2 or sum(map(len, replicas)) > len(set().union(*replicas)):
        raise UserError(
            f"restore_one_replica=True: the mesh {dict(mesh.shape)} has {len(replicas)} replicas along `data` with the "
            f"processes {replicas}. Give --gin.DCN=\"{{'data': -1}}\" for a replica per slice, "
            "or restore_one_replica=False."
        )


def is_replicated(leaf: jax.ShapeDtypeStruct) -> bool:
    """Returns whether every replica holds the whole array; custom rules may shard arrays over `data`."""
    axes = [axis for entry in leaf.sharding.spec for axis in (entry if isinstance(entry, tuple) else (entry,))]
    return MESH_AXES[_AXIS] not in axes


def read(directory: epath.Path, shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads arrays in the processes of the first replica and broadcasts them to the others.

    Args:
      directory: the item `state` of a checkpoint.
      shapes: name -> shape, dtype and sharding, over one mesh, of arrays that `is_replicated`.

    Returns:
      The arrays by name.

    Raises:
      UserError: a process belongs to several replicas, or there is only one replica.
    """
    mesh = next(iter(shapes.values())).sharding.mesh
    check_mesh(mesh)
    logging.info(
        "the processes %s read %s and broadcast it to %d replicas",
        *(_processes(mesh.devices[0].flat), directory, len(mesh.devices)),
    )
    arrays = ocp.type_handlers.SingleReplicaArrayHandler(
        replica_axis_index=_AXIS, broadcast_memory_limit_bytes=_BROADCAST_BYTES
    )
    registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
    restore_args = {
        name: ocp.type_handlers.SingleReplicaArrayRestoreArgs(
            sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype
        )
        for name, leaf in shapes.items()
    }
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    restored = handler.restore(
        directory,
        args=ocp.args.PyTreeRestore(
            item=unflatten_dict(shapes, sep="/"),
            restore_args=unflatten_dict(restore_args, sep="/"),
            partial_restore=True,
        ),
    )
    handler.close()
    return flatten_dict(restored, sep="/")


def _processes(devices: Iterable[jax.Device]) -> list[int]:
    return sorted({device.process_index for device in devices})
