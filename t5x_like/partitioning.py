"""Logical-axis rules and sharding constraints.

Parameters and activations name *logical* axes (`batch`, `embed`, `heads`, …). A rule set maps them to the *mesh* axes
`data` (data parallelism), `fsdp` (data parallelism with sharded parameters), `sequence` and `tensor`. Models
name logical axes only. `Partitioner.jit` binds the rules while it traces a function. Inside the trace,
`shard(x, "batch", "length", "embed")` constrains the sharding of an activation. Without bound rules `shard` returns its
argument, so models also run outside of a partitioner.
"""

import contextlib
import contextvars
import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_like import parameters
from t5x_like.axis_rules import (
    INPUT_TOKENS_SUFFIX,
    LENGTH,
    NO_AXES,
    REPLICATED_UNLESS_DIVISIBLE,
    RESIDUAL_LENGTH,
    Axes,
    Rules,
    as_tuple,
    batch_axes,
    checked_rules,
)
from t5x_like.errors import UserError
from t5x_like.mesh import equal_feed_shards, make_mesh

ATTENTION = ("auto", "xla", "fused", "cudnn", "triton", "gathered")
_ACTIVE: contextvars.ContextVar["Partitioner | None"] = contextvars.ContextVar("partitioner", default=None)


class Partitioner:
    """A mesh and the rules that map logical axes to mesh axes.

    Args:
      rules: Name of a rule set in `axis_rules.RULE_SETS`, or a mapping logical axis -> mesh axes.
      ici: See `make_mesh`.
      dcn: See `make_mesh`.
      devices: See `make_mesh`.
      attention: `auto` chooses the implementation of attention (`kernels.attention.backend_for`), `xla` plain matrix
        products. The name of a backend (`kernels.attention.BACKENDS`) uses it for what it computes, else `xla`.

    Attributes:
      rules: Logical axis -> mesh axes.
      rules_name: Name of the rule set, or `custom`.

    Raises:
      UserError: The rule set, a mesh axis of a rule, or `attention` is unknown.
    """

    def __init__(
        self,
        *,
        rules: str | Rules = "fsdp",
        ici: Mapping[str, int] | None = None,
        dcn: Mapping[str, int] | None = None,
        devices: Sequence[Any] | None = None,
        attention: str = "auto",
    ):
        if attention not in ATTENTION:
            raise UserError(f"Partitioner.attention={attention!r} is unknown. Give one of {', '.join(ATTENTION)}.")
        self.attention = attention
        self.rules_name, self.rules = checked_rules(rules)
        self._sizes = {"ici": ici, "dcn": dcn, "devices": devices}

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The device mesh; raises the errors of `make_mesh` at its first use, as it may belong to other machines."""
        return make_mesh(**self._sizes)

    def __str__(self):
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.mesh.shape.items() if size > 1) or "one device"
        return f"{self.mesh.size} {self.platform} devices, mesh {sizes}, rules {self.rules_name}"

    @property
    def platform(self) -> str:
        """Platform of the devices: `cpu`, `gpu` or `tpu`."""
        return self.mesh.devices.flat[0].platform

    def axis_size(self, logical: str, size: int | None = None) -> int:
        """Returns the number of shards of a logical axis.

        Args:
          logical: The logical axis.
          size: Size of the dimension. `length`, `residual_length` and `kv_heads` are not sharded if their size is not
            divisible by the number of shards.
        """
        shards = math.prod(self.mesh.shape[axis] for axis in as_tuple(self.rules.get(logical, ())))
        return 1 if logical in REPLICATED_UNLESS_DIVISIBLE and size is not None and size % shards else shards

    def spec(
        self, axes: Sequence[str | None], shape: Sequence[int] | None = None, name: str = "array"
    ) -> PartitionSpec:
        """Returns the partition spec of an array.

        `length`, `residual_length` and `kv_heads` are sharded only if their size is divisible: arrays such as the
        masked positions of a row have other lengths than the tokens, and copies of heads replace the sharding of few
        key/value heads (`kernels.head_exchange`). `batch_specs` checks the lengths of tokens.

        Args:
          axes: One logical axis or None per dimension.
          shape: Shape of the array; None skips the checks.
          name: Name of the array in error messages.

        Raises:
          UserError: The size of another dimension is not divisible by its mesh axes.
        """
        used: set[str] = set()
        entries: list[Any] = []
        for position, logical in enumerate(axes):
            candidates = as_tuple(self.rules.get(logical, ())) if logical else ()
            free = tuple(axis for axis in candidates if axis not in used and self.mesh.shape[axis] > 1)
            shards = math.prod(self.mesh.shape[axis] for axis in free)
            if shape is not None and shape[position] % shards:
                if logical in REPLICATED_UNLESS_DIVISIBLE:
                    entries.append(None)
                    used.update(free)  # the devices hold the same elements, and do not shard other dimensions
                    continue
                sizes = " x ".join(f"{axis}={self.mesh.shape[axis]}" for axis in free)
                raise UserError(
                    f"{name}: {logical}={shape[position]} is not divisible by the {shards} shards of mesh axes {sizes} "
                    f"(rules {self.rules_name}). Change the mesh or the size, or replicate the dimension with a "
                    f"mapping without {logical!r} as PARTITIONING: {self._without(logical)}"
                )
            used.update(free)
            entries.append(free if len(free) > 1 else free[0] if free else None)
        return PartitionSpec(*entries)

    def _without(self, logical: str) -> dict[str, Any]:
        return {name: axes for name, axes in self.rules.items() if name != logical}

    def shardings(self, tree: Any) -> Any:
        """Returns the `NamedSharding` of every leaf from its logical axes.

        Args:
          tree: A tree of arrays or shapes; see `parameters`.

        Returns:
          A tree with the structure of `tree`.

        Raises:
          UserError: The size of a dimension is not divisible by its mesh axes.
        """
        axes = parameters.logical_axes(tree)
        return parameters.map_named(
            lambda name, leaf: NamedSharding(self.mesh, self.spec(axes[name], leaf.shape, name)), tree
        )

    @functools.cached_property
    def gathered(self) -> "Partitioner":
        """This partitioner with whole parameters on devices that hold different tokens.

        Mesh axes such as `tensor`, over which each device computes a part of a token, still shard parameters.
        """
        tokens = {axis for logical in ("batch", LENGTH) for axis in as_tuple(self.rules.get(logical, ()))}
        kept = ("batch", LENGTH, RESIDUAL_LENGTH)
        rules = {
            logical: axes if logical in kept else tuple(axis for axis in as_tuple(axes) if axis not in tokens)
            for logical, axes in self.rules.items()
        }
        return self._changed(rules=rules)

    @functools.cached_property
    def of_one_device(self) -> "Partitioner":
        """This partitioner with a mesh of its first device, for what each device computes alone."""
        device = self.mesh.devices.flat[:1].reshape([1] * self.mesh.devices.ndim)
        return self._changed(mesh=Mesh(device, self.mesh.axis_names))

    def axes_of(self, logical: str) -> tuple[str, ...]:
        """Returns the mesh axes of several devices that shard a logical axis."""
        return tuple(axis for axis in as_tuple(self.rules.get(logical, ())) if self.mesh.shape[axis] > 1)

    @property
    def axes_within_rows(self) -> dict[str, int]:
        """Mesh axes over which devices share the computation of a row, and their sizes."""
        rows = self.axes_of("batch")
        return {axis: size for axis, size in self.mesh.shape.items() if size > 1 and axis not in rows}

    def with_rules(self, rules: "str | Rules | None") -> "Partitioner":
        """Returns a partitioner of the same mesh with other rules, or this one for None.

        Args:
          rules: As in the constructor.

        Raises:
          UserError: The rule set or a mesh axis is unknown.
        """
        if rules is None:
            return self
        name, checked = checked_rules(rules)
        return self._changed(rules_name=name, rules=checked)

    def in_one_slice(self) -> "Partitioner":
        """Returns this partitioner with its axes across slices within one slice, as fake CPU devices are."""
        ici, dcn = dict(self._sizes["ici"] or {"data": -1}), dict(self._sizes["dcn"] or {})
        pairs = {axis: (ici.get(axis, 1), dcn.get(axis, 1)) for axis in {**ici, **dcn}}
        sizes = {axis: -1 if -1 in pair else math.prod(pair) for axis, pair in pairs.items()}
        changed = self._changed(_sizes=self._sizes | {"ici": sizes, "dcn": None})
        changed.__dict__.pop("mesh", None)
        return changed

    def _changed(self, **attributes: Any) -> "Partitioner":
        """Returns a copy with other attributes, and without the properties that were computed from the old ones."""
        changed = copy.copy(self)
        for computed in ("gathered", "of_one_device", "feed_shard"):
            changed.__dict__.pop(computed, None)
        changed.__dict__.update(attributes)
        return changed

    @property
    def replicated(self) -> NamedSharding:
        """Sharding of an array that is replicated on all devices."""
        return NamedSharding(self.mesh, PartitionSpec())

    def batch_specs(self, shapes: Mapping[str, tuple[int, ...]], axes: Axes = NO_AXES) -> dict[str, PartitionSpec]:
        """Returns the partition specs of the features of a batch: rows over `batch` and tokens over `length`.

        A feature is sharded along `length` if it is as long as a model input (`*_input_tokens`). Features of other
        lengths, such as masked positions or labels, are replicated along this dimension. If no feature is named
        `*_input_tokens`, all features are sharded. The choices of a row are never sharded.

        Args:
          shapes: Model feature -> global shape.
          axes: Model feature -> logical axes; see `batch_axes`.

        Returns:
          Model feature -> partition spec.

        Raises:
          UserError: The number of rows or the length of an input is not divisible by its mesh axes.
        """
        inputs = [name for name in shapes if name.endswith(INPUT_TOKENS_SUFFIX)] or list(shapes)
        named = {name: dict(enumerate(batch_axes(name, len(shape), axes))) for name, shape in shapes.items()}
        lengths = {shapes[name][at] for name in inputs for at, axis in named[name].items() if axis == LENGTH}
        specs = {}
        for name, shape in shapes.items():
            logical = [
                None if axis == LENGTH and shape[at] not in lengths else axis for at, axis in named[name].items()
            ]
            specs[name] = self.spec(logical, shape, name)
            if LENGTH not in logical:
                continue
            length = shape[logical.index(LENGTH)]
            if (shards := self.axis_size(LENGTH)) != self.axis_size(LENGTH, length):
                raise UserError(
                    f"{name}: length={length} is not divisible by the {shards} shards of the rules "
                    f"{self.rules_name!r}. Change TASK_FEATURE_LENGTHS or the mesh axis 'sequence'."
                )
        return specs

    @functools.cached_property
    def feed_shard(self) -> tuple[int, int]:
        """Index of the feed shard that this process reads, and the number of feed shards.

        A feed shard is a block of consecutive rows of every batch. Processes whose devices hold the same rows, because
        the mesh shards other dimensions between them, read the same feed shard. The order of feed shards follows the
        rows, so a batch does not depend on the arrangement of devices.

        Raises:
          UserError: The mesh does not give every process an equal number of rows.
        """
        shards = self.axis_size("batch")
        indices = NamedSharding(self.mesh, self.spec(("batch",))).devices_indices_map((shards,))
        shards_of: dict[int, set[int]] = {}
        for device, (rows,) in indices.items():
            shards_of.setdefault(device.process_index, set()).update(range(*rows.indices(shards)))
        feed_shards = equal_feed_shards(shards_of, shards)
        return feed_shards.index(tuple(sorted(shards_of[jax.process_index()]))), len(feed_shards)

    def put_batch(self, host_batch: Mapping[str, np.ndarray], axes: Axes = NO_AXES) -> dict[str, jax.Array]:
        """Assembles global arrays from the rows that each process has read.

        Args:
          host_batch: Model feature -> the rows of this process's feed shard (see `feed_shard`).
          axes: Model feature -> logical axes; see `batch_axes`.

        Returns:
          Model feature -> global array.

        Raises:
          UserError: A shape is not divisible by its mesh axes.
        """
        num_shards = self.feed_shard[1]
        shapes = {name: (rows.shape[0] * num_shards, *rows.shape[1:]) for name, rows in host_batch.items()}
        specs = self.batch_specs(shapes, axes)
        return {
            name: jax.make_array_from_process_local_data(NamedSharding(self.mesh, specs[name]), rows, shapes[name])
            for name, rows in host_batch.items()
        }

    @contextlib.contextmanager
    def bound(self):
        """Binds this partitioner for `shard` within the context. Enter the context inside a trace."""
        token = _ACTIVE.set(self)
        try:
            yield self
        finally:
            _ACTIVE.reset(token)

    def jit(self, function: Callable, **options) -> Callable:
        """Returns `jax.jit(function, **options)` with this partitioner bound while the function is traced."""
        layout = options.get("out_shardings")

        @functools.wraps(function)
        def traced(*args, **kwargs):
            with self.bound():
                results = function(*args, **kwargs)
            # JAX ignores out_shardings when jit is disabled.
            return _device_put(results, layout) if jax.config.jax_disable_jit else results

        return jax.jit(traced, **options)

    def eval_shape(self, function: Callable, *args) -> Any:
        """Returns `jax.eval_shape(function, *args)` with this partitioner bound."""
        with self.bound():
            return jax.eval_shape(function, *args)


def shard(x: jax.Array, *axes: str | None) -> jax.Array:
    """Constrains an activation to its sharding under the bound partitioner.

    Args:
      x: An array.
      *axes: One logical axis or None per dimension.

    Returns:
      `x` with the constraint, or `x` itself without a bound partitioner or on a single device.
    """
    partitioner = _ACTIVE.get()
    if partitioner is None or partitioner.mesh.size == 1:
        return x
    spec = partitioner.spec(axes, x.shape, "activation")
    return jax.lax.with_sharding_constraint(x, NamedSharding(partitioner.mesh, spec))


def shard_tree(tree: Any) -> Any:
    """Constrains gradients or updates to the shardings of their parameters under the bound partitioner.

    Args:
      tree: A tree with the structure of the parameters.

    Returns:
      `tree` with the constraints, or `tree` itself without a bound partitioner or on a single device.
    """
    partitioner = _ACTIVE.get()
    if partitioner is None or partitioner.mesh.size == 1:
        return tree
    return jax.lax.with_sharding_constraint(tree, partitioner.shardings(tree))


def bound_partitioner() -> Partitioner | None:
    """Returns the bound partitioner, or None without one."""
    return _ACTIVE.get()


def bound_mesh() -> Mesh | None:
    """Returns the mesh of the bound partitioner, or None without one."""
    partitioner = _ACTIVE.get()
    return None if partitioner is None else partitioner.mesh


def bound_platform() -> str | None:
    """Returns the platform of the bound partitioner's devices (`cpu`, `gpu` or `tpu`), or None without one."""
    partitioner = _ACTIVE.get()
    return None if partitioner is None else partitioner.platform


def axis_size(logical: str, size: int | None = None) -> int:
    """Returns `Partitioner.axis_size` of the bound partitioner, or 1 without one."""
    partitioner = _ACTIVE.get()
    return 1 if partitioner is None else partitioner.axis_size(logical, size)


def axes_of(logical: str) -> tuple[str, ...]:
    """Returns `Partitioner.axes_of` of the bound partitioner, or no axes without one."""
    partitioner = _ACTIVE.get()
    return () if partitioner is None else partitioner.axes_of(logical)


def batch_shards() -> int:
    """Returns the number of shards of `batch` under the bound partitioner, or 1 without one."""
    return axis_size("batch")


def _device_put(results: Any, layout: Any) -> Any:
    """Places results according to `out_shardings`, which may be a prefix of their tree and contain None."""
    if layout is None:
        return results
    put = lambda sharding, part: part if sharding is None else jax.device_put(part, sharding)  # noqa: E731
    return jax.tree.map(put, layout, results, is_leaf=lambda node: node is None)
