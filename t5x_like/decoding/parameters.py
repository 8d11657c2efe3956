"""Parameters in the dtype and the layout in which decoding reads them."""

import math
from collections.abc import Collection
from typing import Any, TypeVar

import jax
from absl import logging
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from t5x_like import parameters, partitioning
from t5x_like.adapters import lifecycle
from t5x_like.parameters import Tree

M = TypeVar("M", bound=nnx.Module)
# Share of a device's memory that gathered parameters may take. The rest is for their sharded originals, which training
# keeps, and for caches and activations.
GATHERED_FRACTION = 0.5


def for_decoding(model: M) -> M:
    """Casts and gathers the parameters of a model once, because every step of decoding reads all of them.

    A step computes few products per parameter, so it takes as long as reading them.

    Args:
      model: The model. A second call returns the same arrays.

    Returns:
      The model, with whole parameters on devices that hold different rows, unless these are too large.
    """
    return _gather(in_compute_dtype(model, ("kernel", "embedding")))


def in_compute_dtype(model: M, kinds: Collection[str]) -> M:
    """Casts parameters to `config.compute_dtype`, in which they are used; the results stay the same to the bit.

    The other parameters, such as the scales of norms, are used in float32 and stay float32.

    Args:
      model: The model, some of whose parameters may be None.
      kinds: Names of the parameters to cast within their layers: `kernel`, with its bias, or `embedding`. The gradient
        of an embedding is summed over tokens in the dtype of the embedding.

    Returns:
      The model, unchanged if an adapter reads them in float32.
    """
    if lifecycle.kept_in_float32(model.config) & set(kinds):
        return model
    return cast_kinds(model, kinds, model.config.compute_dtype)


def cast_kinds(params: Tree, kinds: Collection[str], dtype: DTypeLike) -> Tree:
    """Casts the parameters of some kinds.

    Args:
      params: Parameters, some of which may be None.
      kinds: See `in_compute_dtype`.
      dtype: The dtype of the result.
    """
    names = set(parameters.named_leaves(params))

    def cast(name, leaf):
        parent, _, kind = name.rpartition("/")
        of_kernel = kind == "bias" and "kernel" in kinds and f"{parent}/kernel" in names
        return leaf.astype(dtype) if kind in kinds or of_kernel else leaf

    return parameters.map_named(cast, params)


def _gather(tree: Any) -> Any:
    """Constrains parameters to the shardings of `Partitioner.gathered` of the bound partitioner.

    Under rules such as `fsdp`, a step would otherwise gather every parameter over all devices for a few tokens per row.
    Parameters that do not fit on a device stay as they are, with a warning.
    """
    partitioner = partitioning.bound_partitioner()
    if partitioner is None or partitioner.mesh.size == 1:
        return tree
    shardings = partitioner.gathered.shardings(tree)
    needed = sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True)
    )
    memory = device_memory(partitioner.mesh)
    if memory is not None and needed > GATHERED_FRACTION * memory:
        logging.warning(
            "%.1f GiB of parameters per device are more than %.0f %% of its %.1f GiB, so they are gathered for every "
            "token. Generation is faster with tensor parallelism, for example --gin.PARTITIONING=fsdp_tp "
            "--gin.ICI=\"{'tensor': -1}\".",
            needed / 2**30,
            100 * GATHERED_FRACTION,
            memory / 2**30,
        )
        return tree
    return jax.lax.with_sharding_constraint(tree, shardings)


def device_memory(mesh: Mesh) -> int | None:
    """Returns the memory of a device in bytes, or None if it is unknown, as on CPU and for devices of a topology."""
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    stats = local[0].memory_stats() if local and local[0].platform != "cpu" else None
    return (stats or {}).get("bytes_limit")
