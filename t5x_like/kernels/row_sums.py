"""Sums over rows in which each device sums its own rows with whole parameters.

In a loop over chunks or microbatches, XLA gathers sharded parameters and adds up the gradients of all devices in every
iteration. Here, both happen once, outside of the loop.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from t5x_like import partitioning


def single_device_partitioner() -> partitioning.Partitioner | None:
    """Returns the partitioner of a single device, with which each device computes its own rows without communication.

    It is None if there is one device, or if devices share the computation of a row.
    """
    partitioner = partitioning.bound_partitioner()
    if partitioner is None or partitioner.mesh.size == 1 or partitioner.axes_within_rows:
        return None
    return partitioner.of_one_device


def sum_over_devices(
    function: Callable[[Any, Any], tuple[Any, Any]], shared: Any, rows: Any, *, specs: Any, out_spec: PartitionSpec
) -> tuple[Any, Any]:
    """Calls `function(shared, rows)` on each device for its own rows, and adds up the results once.

    `single_device_partitioner()` must not be None.

    Args:
      function: Returns a tree of sums over the rows, and a tree of arrays that are sharded over rows.
      shared: A tree of arrays that all rows read. They are gathered.
      rows: A tree of arrays that are sharded over rows.
      specs: Partition specs of `rows`, a prefix of its tree.
      out_spec: Partition spec of the arrays that the function returns.

    Returns:
      The sums over all rows, and the arrays of all rows.
    """
    partitioner, device = partitioning.bound_partitioner(), single_device_partitioner()
    devices = PartitionSpec(partitioner.axes_of("batch"))

    def on_device(shared, rows):
        with device.bound():
            sums, of_rows = function(shared, rows)
        return jax.tree.map(lambda x: x[None], sums), of_rows

    # The sums of the devices are a dimension, sharded over them, until XLA adds them up into the shards of its choice.
    sums, of_rows = jax.shard_map(
        on_device,
        mesh=partitioner.mesh,
        in_specs=(PartitionSpec(), specs),
        out_specs=(devices, out_spec),
        check_vma=False,
    )(shared, rows)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), sums), of_rows
