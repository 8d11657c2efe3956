"""Converts the stacked arrays of a checkpoint to the layout of a run, with little additional memory."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from t5x_like import parameters, partitioning


def to_layout(stacked: dict[str, jax.Array], like: Any, partitioner: partitioning.Partitioner) -> Any:
    """Returns the arrays of a checkpoint as a tree of the structure and layout of `like`.

    Args:
      stacked: Arrays by stored name. The function empties it.
      like: A pytree of arrays or shapes.
      partitioner: The mesh and rules that place the arrays.
    """
    return parameters.rebuild(like, lay_out(stacked, parameters.named_leaves(partitioner.shardings(like))))


def lay_out(stacked: dict[str, jax.Array], shardings: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Converts stacked arrays to the layout of `shardings`, with at most one additional stack in memory.

    Args:
      stacked: Arrays by stored name. The function empties it, which frees each stack once it is unrolled.
      shardings: Shardings by name, in either layout.

    Returns:
      Arrays by the names of `shardings`. Arrays that need no conversion are not copied.
    """
    groups: dict[str, list[str]] = {}
    for name in shardings:
        groups.setdefault(parameters.stored_name(name)[0], []).append(name)
    placed = {}
    for stored, names in groups.items():
        leaf = stacked.pop(stored)
        if names == [stored]:
            placed[stored] = jax.device_put(leaf, shardings[stored])
            continue
        names.sort(key=lambda name: parameters.stored_name(name)[1])
        wanted = [shardings[name] for name in names]
        # `unroll_program` ignores out_shardings while jit is disabled, so the layers are placed explicitly.
        layers = jax.block_until_ready(jax.device_put(unroll_program(wanted)(leaf), wanted))
        placed |= dict(zip(names, layers, strict=True))
    return placed


def unroll_program(shardings: list[Any]) -> Any:
    """Returns a jitted function that splits a stack `[layers, …]` into its layers.

    Args:
      shardings: One sharding per layer.
    """
    return jax.jit(_layers, out_shardings=shardings)


def _layers(stack):
    return [stack[index] for index in range(stack.shape[0])]


def stacked_shapes(like: Any, partitioner: partitioning.Partitioner) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of the stacked leaves of `like` (arrays or shapes), with the shardings to restore them to."""
    axes = parameters.logical_axes(like)
    unrolled = parameters.named_leaves(like)
    shapes = parameters.stack({name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in unrolled.items()})
    by_stored_name = {parameters.stored_name(name)[0]: axes[name] for name in unrolled}
    sharded = {}
    for name, shape in shapes.items():
        logical = by_stored_name[name]
        if len(logical) < len(shape.shape):
            logical = (parameters.LAYERS, *logical)
        sharding = jax.sharding.NamedSharding(partitioner.mesh, partitioner.spec(logical, shape.shape, name))
        sharded[name] = jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
    return sharded


def copy_for_save(
    leaves: Mapping[str, jax.Array], shardings: Mapping[str, jax.sharding.Sharding] | None = None
) -> dict[str, jax.Array]:
    """Returns leaves by stored name. Copies them if a donation could change an array that is still being written.

    Args:
      leaves: Arrays by name, in either layout.
      shardings: The shardings of copies by stored name; chosen by XLA by default.
    """
    unrolled = any(parameters.stored_name(name)[1] is not None for name in leaves)
    on_cpu = next(iter(next(iter(leaves.values())).devices())).platform == "cpu"
    if not (unrolled or on_cpu):  # Orbax copies arrays of an accelerator to the host before it returns from a save.
        return dict(leaves)
    return _copy_program(None if shardings is None else tuple(shardings.items()))(dict(leaves))


@functools.lru_cache(maxsize=2)
def _copy_program(shardings: tuple[tuple[str, jax.sharding.Sharding], ...] | None) -> Any:
    def copy(leaves):
        return parameters.stack({name: jnp.copy(leaf) for name, leaf in leaves.items()})

    return jax.jit(copy, out_shardings=None if shardings is None else dict(shardings))
