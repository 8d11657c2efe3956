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
from t5x_like.errors import UserError

MESH_AXES = ("data", "fsdp", "sequence", "tensor")
LENGTH = "length"
# How the features are called that networks read, and whose length is that of a row of tokens.
INPUT_TOKENS_SUFFIX = "_input_tokens"
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


class DeviceMismatchError(UserError):
    """A mesh does not fit the devices of this machine; it may fit those of another."""


def make_mesh(
    *, ici: Mapping[str, int] | None = None, dcn: Mapping[str, int] | None = None, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh over all devices with the axes `data`, `fsdp`, `sequence`, `tensor`.

    Args:
      ici: sizes of mesh axes within a slice; axes not named are 1; one may be -1 and takes what is left. The default is
        `{"data": -1}`.
      dcn: sizes across slices, multiplied into the same axes; one may be -1 here too, and takes as many as there are
        slices (see `count_slices`). The default is no axis across slices.
      devices: the devices to use; the default is all of them.

    Raises:
      UserError: unknown axes, or sizes that no mesh has.
      DeviceMismatchError: the sizes do not multiply to the number of devices, or JAX cannot lay the mesh out over them.
    """
    devices = list(jax.devices() if devices is None else devices)
    ici, dcn = dict(ici or {"data": -1}), dict(dcn or {})
    for which, sizes in (("ici", ici), ("dcn", dcn)):
        if unknown := sorted(set(sizes) - set(MESH_AXES)):
            raise UserError(f"{which} names the mesh axes {unknown}; there are {list(MESH_AXES)}")
    dcn_sizes = _filled("dcn", dcn, count_slices(devices) if -1 in dcn.values() else math.prod(dcn.values()))
    slices = math.prod(dcn_sizes)
    ici_sizes = _filled("ici", ici, len(devices) // slices if len(devices) % slices == 0 else 0)
    if math.prod(ici_sizes) * slices != len(devices):
        known = math.prod(size for size in (*ici.values(), *dcn.values()) if size != -1)
        raise DeviceMismatchError(
            f"a mesh of ici={ici} and dcn={dcn} does not fit {len(devices)} {devices[0].platform} devices: "
            f"the sizes multiply to {known}. Change the mesh, or use --cpu_devices=N to pretend N devices."
        )
    if slices > 1 and slices != count_slices(devices):
        raise DeviceMismatchError(
            f"dcn={dcn} multiplies to {slices}, but the devices belong to {count_slices(devices)} slices (on CPU, "
            "processes). Change DCN, or let an axis of it be -1"
        )
    axis_types = (AxisType.Auto,) * len(MESH_AXES)
    if devices[0].platform == "tpu" and slices == 1 and count_slices(devices) > 1:
        raise DeviceMismatchError(
            f"the devices belong to {count_slices(devices)} slices, and no mesh axis is said to cross them: give "
            "--gin.DCN=\"{'data': -1}\", or another axis that the network between slices is to carry"
        )
    try:
        # An axis of the torus may be split between two mesh axes: a slice of 4x4 holds fsdp=8 x tensor=2.
        if slices > 1:
            by_process = _slice_of(devices[0]) is None
            grid = mesh_utils.create_hybrid_device_mesh(
                ici_sizes, dcn_sizes, devices, process_is_granule=by_process, allow_split_physical_axes=True
            )
        else:
            grid = mesh_utils.create_device_mesh(ici_sizes, devices, allow_split_physical_axes=True)
    except (NotImplementedError, AssertionError) as error:
        raise DeviceMismatchError(
            f"ici={ici} dcn={dcn}: JAX cannot lay this mesh out over the {devices[0].platform} devices: {error}. "
            "Choose other sizes, or a slice whose chips form a full cuboid."
        ) from error
    return Mesh(grid, MESH_AXES, axis_types=axis_types)


def count_slices(devices: Sequence[Any]) -> int:
    """How many slices the devices belong to: on TPU slices, on GPU machines, on CPU processes."""
    if _slice_of(devices[0]) is None:
        return len({device.process_index for device in devices})
    return len({_slice_of(device) for device in devices})


def _slice_of(device: Any) -> int | None:
    if device.platform == "cpu":
        return None
    # Devices that are only compiled for have none where there is a single slice.
    return getattr(device, "slice_index", 0 if device.platform == "tpu" else None)


def _filled(which: str, sizes: Mapping[str, int], total: int) -> list[int]:
    """The size of every mesh axis; -1 stands for what the others leave of `total`, where they divide it."""
    wanted = [sizes.get(axis, 1) for axis in MESH_AXES]
    if wanted.count(-1) > 1:
        raise UserError(f"{which}={dict(sizes)}: only one mesh axis can be -1 (fill in what is left)")
    if bad := {axis: size for axis, size in sizes.items() if size < 1 and size != -1}:
        raise UserError(f"{which}={dict(sizes)}: a mesh axis has a size of at least 1, or -1, not {bad}")
    known = math.prod(size for size in wanted if size != -1)
    return [max(total // known, 1) if size == -1 else size for size in wanted]


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
            raise UserError(f"there is no rule set {rules!r}; there are {sorted(RULE_SETS)}, or give a mapping")
        self.rules_name = rules if isinstance(rules, str) else "custom"
        self.rules: Rules = RULE_SETS[rules] if isinstance(rules, str) else dict(rules)
        for logical, axes in self.rules.items():
            if unknown := set(_as_tuple(axes)) - set(MESH_AXES):
                raise UserError(f"rule {logical!r} names the mesh axes {sorted(unknown)}; there are {list(MESH_AXES)}")
        self.mesh = make_mesh(ici=ici, dcn=dcn, devices=devices)

    @property
    def platform(self) -> str:
        """The platform of the mesh's devices: `cpu`, `gpu` or `tpu`."""
        return self.mesh.devices.flat[0].platform

    def axis_size(self, logical: str, size: int | None = None) -> int:
        """Into how many parts a logical axis is split; a `length` of this `size` is whole where it does not divide."""
        parts = math.prod(self.mesh.shape[axis] for axis in _as_tuple(self.rules.get(logical, ())))
        return 1 if logical == LENGTH and size is not None and size % parts else parts

    def spec(
        self, axes: Sequence[str | None], shape: Sequence[int] | None = None, name: str = "array"
    ) -> PartitionSpec:
        """The partition spec of an array with these logical axes.

        `length` is split only where it divides: there are lengths of other things than tokens, such as the masked
        positions of a row. That the lengths of tokens divide is checked of batches (`batch_specs`).

        Raises:
          UserError: another dimension of `shape` does not divide by the mesh axes that it is split over.
        """
        taken: set[str] = set()
        entries: list[Any] = []
        for position, logical in enumerate(axes):
            wanted = _as_tuple(self.rules.get(logical, ())) if logical else ()
            free = tuple(axis for axis in wanted if axis not in taken and self.mesh.shape[axis] > 1)
            parts = math.prod(self.mesh.shape[axis] for axis in free)
            if shape is not None and shape[position] % parts:
                if logical == LENGTH:
                    entries.append(None)
                    continue
                sizes = " x ".join(f"{axis}={self.mesh.shape[axis]}" for axis in free)
                raise UserError(
                    f"{name}: {logical}={shape[position]} does not divide by the {parts} parts of mesh axes {sizes} "
                    f"(rules {self.rules_name}). Change the mesh or the size, or leave it whole with a mapping "
                    f"without {logical!r} as PARTITIONING: {self._without(logical)}"
                )
            taken.update(free)
            entries.append(free if len(free) > 1 else free[0] if free else None)
        return PartitionSpec(*entries)

    def _without(self, logical: str) -> dict[str, Any]:
        return {name: axes for name, axes in self.rules.items() if name != logical}

    def shardings(self, tree: Any) -> Any:
        """A tree like `tree` (of arrays or shapes) with the `NamedSharding` of every leaf, from its logical axes."""
        axes = parameters.logical_axes(tree)
        return parameters.map_named(
            lambda name, leaf: NamedSharding(self.mesh, self.spec(axes[name], leaf.shape, name)), tree
        )

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def batch_specs(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, PartitionSpec]:
        """The partition spec of every feature of a batch: rows over `batch`, and tokens over `length`.

        Split along `length` are the features that are as long as one of the inputs that networks read,
        `*_input_tokens`; what is of another length (masked positions, a label) is whole on each device. Where nothing
        is called so, all are split.

        Args:
          shapes: model feature -> `(rows, length, …)` over all processes.

        Raises:
          UserError: the rows, or the length of an input, do not divide by the mesh.
        """
        inputs = [name for name in shapes if name.endswith(INPUT_TOKENS_SUFFIX)] or list(shapes)
        lengths = {shapes[name][1] for name in inputs if len(shapes[name]) > 1}
        specs = {}
        for name, shape in shapes.items():
            second = LENGTH if len(shape) > 1 and shape[1] in lengths else None
            axes = ("batch", second, *(None,) * len(shape))[: len(shape)]
            specs[name] = self.spec(axes, shape, name)
            if second and (parts := self.axis_size(LENGTH)) != self.axis_size(LENGTH, shape[1]):
                raise UserError(
                    f"{name}: length={shape[1]} does not divide by the {parts} parts that the rules "
                    f"{self.rules_name!r} split it into. Change TASK_FEATURE_LENGTHS or the mesh axis 'sequence'."
                )
        return specs

    @functools.cached_property
    def feed_shard(self) -> tuple[int, int]:
        """Which part of each batch's rows this process reads, and how many parts there are.

        Processes whose devices hold the same rows, because the mesh splits something else between them, read the same
        part. Parts are counted in the order of the rows, so that the batch is the same however devices are arranged.

        Raises:
          UserError: the rows of a process would not be one part of equal size.
        """
        parts = self.axis_size("batch")
        indices = NamedSharding(self.mesh, self.spec(("batch",))).devices_indices_map((parts,))
        rows_of: dict[int, set[int]] = {}
        for device, (rows,) in indices.items():
            rows_of.setdefault(device.process_index, set()).update(range(*rows.indices(parts)))
        shares = _equal_shares(rows_of, parts)
        return shares.index(tuple(sorted(rows_of[jax.process_index()]))), len(shares)

    def put_batch(self, host_batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """The rows that this process has read (see `feed_shard`) of every feature as one global array."""
        shares = self.feed_shard[1]
        shapes = {name: (rows.shape[0] * shares, *rows.shape[1:]) for name, rows in host_batch.items()}
        specs = self.batch_specs(shapes)
        return {
            name: jax.make_array_from_process_local_data(NamedSharding(self.mesh, specs[name]), rows, shapes[name])
            for name, rows in host_batch.items()
        }

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
        layout = options.get("out_shardings")

        @functools.wraps(function)
        def traced(*args, **kwargs):
            with self.bound():
                results = function(*args, **kwargs)
            # Without compilation nobody else looks at where results belong.
            return _placed(results, layout) if jax.config.jax_disable_jit else results

        return jax.jit(traced, **options)

    def eval_shape(self, function: Callable, *args) -> Any:
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


def bound_platform() -> str | None:
    """Returns the platform of the bound partitioner's devices (`cpu`, `gpu` or `tpu`), or None without one."""
    partitioner = _ACTIVE.get()
    return None if partitioner is None else partitioner.platform


def axis_size(logical: str, size: int | None = None) -> int:
    """Into how many parts the bound partitioner splits a logical axis of this size (1 without one)."""
    partitioner = _ACTIVE.get()
    return 1 if partitioner is None else partitioner.axis_size(logical, size)


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


def _equal_shares(rows_of: Mapping[int, set[int]], parts: int) -> list[tuple[int, ...]]:
    """The distinct sets of rows that processes hold, in order; together they are all rows, each as many as another."""
    shares = sorted({tuple(sorted(rows)) for rows in rows_of.values()})
    if [row for share in shares for row in share] != list(range(parts)) or len({*map(len, shares)}) > 1:
        raise UserError(
            f"the mesh spreads the {parts} parts of a batch unevenly over {len(rows_of)} processes, which hold the "
            f"parts {shares}. Give the mesh axes 'data' and 'fsdp' sizes that divide by the number of processes, "
            "or that divide it"
        )
    return shares


def _placed(results: Any, layout: Any) -> Any:
    """Results where `out_shardings` wants them; it may name less than all of them."""
    if layout is None:
        return results
    put = lambda sharding, part: part if sharding is None else jax.device_put(part, sharding)  # noqa: E731
    return jax.tree.map(put, layout, results, is_leaf=lambda node: node is None)


def _as_tuple(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else tuple(axes or ())
