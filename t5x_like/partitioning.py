"""The mesh, the logical-axis rules, and `shard()`: the only module that knows mesh axes.

Parameters and activations name *logical* axes (`batch`, `embed`, `heads`, …). A rule set maps those to the *mesh* axes
`data` (pure data parallelism), `fsdp` (data parallelism with parameters split), `sequence` and `tensor`. Rules are
bound once per jitted function by `Partitioner.jit`; inside its trace `shard(x, "batch", "length", "embed")`
constrains an activation, outside it does nothing, so that networks run unchanged in a notebook.
"""

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from t5x_like import parameters

MESH_AXES = ("data", "fsdp", "sequence", "tensor")
Rules = Mapping[str, str | tuple[str, ...]]

# Logical axis -> mesh axes. A mesh axis serves one dimension of an array only, the first that asks for it: `embed` is
# split over `fsdp` in parameters, but not in activations, whose `batch` has taken `fsdp`. What is not named is
# replicated.
RULE_SETS: dict[str, Rules] = {
    "dp": {"batch": ("data", "fsdp")},
    "fsdp": {"batch": ("data", "fsdp"), "embed": "fsdp"},
    "fsdp_tp": {
        "batch": ("data", "fsdp"),
        "embed": "fsdp",
        "vocab": "tensor",
        "mlp": "tensor",
        "heads": "tensor",
    },
    "fsdp_tp_sp": {
        "batch": ("data", "fsdp"),
        "length": "sequence",
        "embed": "fsdp",
        "vocab": "tensor",
        "mlp": "tensor",
        "heads": "tensor",
    },
}

_ACTIVE: contextvars.ContextVar["Partitioner | None"] = contextvars.ContextVar("partitioner", default=None)


def make_mesh(
    *, ici: Mapping[str, int] | None = None, dcn: Mapping[str, int] | None = None, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh over all devices with the axes `data`, `fsdp`, `sequence`, `tensor`.

    Args:
      ici: sizes of mesh axes within a slice; axes not named are 1; one may be -1 and takes what is left. The default is
        `{"data": -1}`.
      dcn: sizes across slices, multiplied into the same axes; the default is no axis across slices.
      devices: the devices to use; the default is all of them.

    Raises:
      ValueError: unknown axes, or sizes that do not multiply to the number of devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    ici, dcn = dict(ici or {"data": -1}), dict(dcn or {})
    for which, sizes in (("ici", ici), ("dcn", dcn)):
        if unknown := sorted(set(sizes) - set(MESH_AXES)):
            raise ValueError(f"{which} names the mesh axes {unknown}; there are {list(MESH_AXES)}")
    slices = math.prod(dcn.values())
    ici_sizes = [ici.get(axis, 1) for axis in MESH_AXES]
    if ici_sizes.count(-1) > 1:
        raise ValueError(f"ici={ici}: only one mesh axis can be -1 (fill in what is left)")
    known = math.prod(size for size in ici_sizes if size != -1)
    if -1 in ici_sizes and len(devices) % (known * slices) == 0:
        ici_sizes[ici_sizes.index(-1)] = len(devices) // (known * slices)
    if -1 in ici_sizes or math.prod(ici_sizes) * slices != len(devices):
        raise ValueError(
            f"a mesh of ici={ici} and dcn={dcn} does not fit {len(devices)} {devices[0].platform} devices: "
            f"the sizes multiply to {known * slices}. Change the mesh, or use --cpu_devices=N to pretend N devices."
        )
    axis_types = (AxisType.Auto,) * len(MESH_AXES)
    if slices > 1:
        dcn_sizes = [dcn.get(axis, 1) for axis in MESH_AXES]
        grid = mesh_utils.create_hybrid_device_mesh(ici_sizes, dcn_sizes, devices)
    else:
        grid = mesh_utils.create_device_mesh(ici_sizes, devices, allow_split_physical_axes=True)
    return Mesh(grid, MESH_AXES, axis_types=axis_types)


class Partitioner:
    """A mesh with the rules that say which logical axis is split over which mesh axes."""

    def __init__(
        self,
        *,
        rules: str | Rules = "fsdp",
        ici: Mapping[str, int] | None = None,
        dcn: Mapping[str, int] | None = None,
        devices: Sequence[Any] | None = None,
    ):
        """Makes the mesh (see `make_mesh`) and binds `rules`: the name of a rule set, or a mapping of one's own."""
        if isinstance(rules, str) and rules not in RULE_SETS:
            raise ValueError(f"there is no rule set {rules!r}; there are {sorted(RULE_SETS)}, or give a mapping")
        self.rules_name = rules if isinstance(rules, str) else "custom"
        self.rules: Rules = RULE_SETS[rules] if isinstance(rules, str) else dict(rules)
        for logical, axes in self.rules.items():
            if unknown := set(_as_tuple(axes)) - set(MESH_AXES):
                raise ValueError(f"rule {logical!r} names the mesh axes {sorted(unknown)}; there are {list(MESH_AXES)}")
        self.mesh = make_mesh(ici=ici, dcn=dcn, devices=devices)

    @property
    def platform(self) -> str:
        """The platform of the mesh's devices: `cpu`, `gpu` or `tpu`."""
        return self.mesh.devices.flat[0].platform

    def axis_size(self, logical: str) -> int:
        """Into how many parts a logical axis is split."""
        return math.prod(self.mesh.shape[axis] for axis in _as_tuple(self.rules.get(logical, ())))

    def spec(
        self, axes: Sequence[str | None], shape: Sequence[int] | None = None, name: str = "array"
    ) -> PartitionSpec:
        """The partition spec of an array with these logical axes.

        Raises:
          ValueError: a dimension of `shape` does not divide by the mesh axes that it is split over.
        """
        taken: set[str] = set()
        entries: list[Any] = []
        for position, logical in enumerate(axes):
            wanted = _as_tuple(self.rules.get(logical, ())) if logical else ()
            free = tuple(axis for axis in wanted if axis not in taken and self.mesh.shape[axis] > 1)
            parts = math.prod(self.mesh.shape[axis] for axis in free)
            if shape is not None and shape[position] % parts:
                sizes = " x ".join(f"{axis}={self.mesh.shape[axis]}" for axis in free)
                raise ValueError(
                    f"{name}: {logical}={shape[position]} does not divide by the {parts} parts of mesh axes {sizes} "
                    f"(rules {self.rules_name}). Change the mesh or the size."
                )
            taken.update(free)
            entries.append(free if len(free) > 1 else free[0] if free else None)
        return PartitionSpec(*entries)

    def shardings(self, tree: Any) -> Any:
        """A tree like `tree` (of arrays or shapes) with the `NamedSharding` of every leaf, from its logical axes."""
        axes = parameters.logical_axes(tree)
        return parameters.map_named(
            lambda name, leaf: NamedSharding(self.mesh, self.spec(axes[name], leaf.shape, name)), tree
        )

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def put_batch(self, host_batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """This process's rows `[rows, length, …]` of every feature as one global array, split along `batch`."""
        arrays = {}
        for name, rows in host_batch.items():
            shape = (rows.shape[0] * jax.process_count(), *rows.shape[1:])
            axes = ("batch", "length")[: rows.ndim] + (None,) * (rows.ndim - 2)
            sharding = NamedSharding(self.mesh, self.spec(axes, shape, name))
            arrays[name] = jax.make_array_from_process_local_data(sharding, rows, shape)
        return arrays

    @contextlib.contextmanager
    def bound(self):
        """Binds this partitioner for `shard()` within the context; use it inside a trace."""
        token = _ACTIVE.set(self)
        try:
            yield self
        finally:
            _ACTIVE.reset(token)

    def jit(self, function: Callable, **options) -> Callable:
        """`jax.jit(function, **options)` with this partitioner bound while it is traced."""

        @functools.wraps(function)
        def traced(*args, **kwargs):
            with self.bound():
                return function(*args, **kwargs)

        return jax.jit(traced, **options)

    def trace(self, function: Callable, *args) -> Any:
        """The shapes that `function(*args)` returns, as `jax.eval_shape`, with this partitioner bound."""
        with self.bound():
            return jax.eval_shape(function, *args)


def shard(x: jax.Array, *axes: str | None) -> jax.Array:
    """Constrains an activation with these logical axes to the bound partitioner's layout; the identity without one.

    Args:
      x: an array.
      *axes: one logical axis (or None) a dimension.
    """
    partitioner = _ACTIVE.get()
    if partitioner is None or partitioner.mesh.size == 1:
        return x
    spec = partitioner.spec(axes, x.shape, "activation")
    return jax.lax.with_sharding_constraint(x, NamedSharding(partitioner.mesh, spec))


def shard_tree(tree: Any) -> Any:
    """Constrains every leaf of a parameter-like tree (gradients, updates) to its parameter's layout."""
    partitioner = _ACTIVE.get()
    if partitioner is None or partitioner.mesh.size == 1:
        return tree
    return jax.lax.with_sharding_constraint(tree, partitioner.shardings(tree))


def bound_mesh() -> Mesh | None:
    """The mesh of the bound partitioner, for kernels that choose by device or need `shard_map`."""
    partitioner = _ACTIVE.get()
    return None if partitioner is None else partitioner.mesh


def axis_size(logical: str) -> int:
    """Into how many parts the bound partitioner splits a logical axis (1 without one)."""
    partitioner = _ACTIVE.get()
    return 1 if partitioner is None else partitioner.axis_size(logical)


def batch_shards() -> int:
    """Into how many parts the bound partitioner splits `batch`."""
    return axis_size("batch")


# What a configuration leaves to the platform: networks are unrolled on CPU, where a scan over layers costs 20 to 25 %.
_PLATFORM_DEFAULTS = {
    "cpu": {"dtype": "float32", "scan_layers": False},
    "gpu": {"dtype": "bfloat16", "scan_layers": True},
    "tpu": {"dtype": "bfloat16", "scan_layers": True},
}


def for_platform(config: Any, platform: str) -> Any:
    """A model configuration with the fields left `None` (`dtype`, `scan_layers`) filled in for a platform."""
    defaults = _PLATFORM_DEFAULTS["gpu" if platform in ("cuda", "rocm") else platform]
    unset = {name: value for name, value in defaults.items() if getattr(config, name, value) is None}
    return dataclasses.replace(config, **unset)


def _as_tuple(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else tuple(axes or ())
