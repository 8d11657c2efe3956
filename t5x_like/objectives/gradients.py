"""Gradients of the loss of a batch, over microbatches.

The loss is  Σ_t coefficient_t · sum_t / W_t , where W_t is the total weight of loss term t over the whole global batch.
W_t depends on the data alone and is computed before any gradient, so the result does not depend on the number of
microbatches or devices.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import partitioning
from t5x_like.axis_rules import NO_AXES, Axes, batch_axes
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import FIRST_NAMED_KEY
from t5x_like.objectives import gathering, passes
from t5x_like.objectives.base import Objective
from t5x_like.objectives.carry import as_features
from t5x_like.objectives.gathering import Gathering
from t5x_like.objectives.keys import Keys, row_keys
from t5x_like.objectives.variables import Frozen, assemble

# Indices of further keys derived from the key of a step: `Keys.rows` and `Keys.step`.
_ROWS, _STEP = FIRST_NAMED_KEY + 1, FIRST_NAMED_KEY + 2
# Name in a batch of the keys of its rows, which are split like a feature.
_ROW_KEYS = "row_keys"

Scalar = Float[Array, ""]
LossNormalization = Literal["NUM_REAL_TARGET_TOKENS"] | float | None


def split_batch(batch: Mapping[str, Array], microbatches: int, axes: Axes = NO_AXES) -> dict[str, Array]:
    """Reshapes features `[batch, …]` to `[microbatches, batch / microbatches, …]`; each device keeps its rows.

    The choices of a row are in the same microbatch. Arrays without rows are whole in each microbatch.

    Args:
      batch: The global batch.
      microbatches: Number of microbatches.
      axes: Model feature -> logical axes; see `axis_rules.batch_axes`.

    Returns:
      The features with a leading dimension of microbatches.

    Raises:
      UserError: The batch size is not a multiple of microbatches times data-parallel shards.
    """
    size = passes.count_rows(batch)
    check_batch_size(size, microbatches, partitioning.batch_shards())

    def split(name, x):
        if "batch" not in batch_axes(name, x.ndim, axes):
            return jnp.broadcast_to(x, (microbatches, *x.shape))
        # Row i goes to microbatch i % microbatches, so that no row moves to another device.
        rows = x.reshape(size // microbatches, microbatches, *x.shape[1:]).swapaxes(0, 1)
        return partitioning.shard(rows, None, *batch_axes(name, x.ndim, axes))

    return {name: split(name, x) for name, x in batch.items()}


def count_used(batch: Mapping[str, Array], microbatches: int, axes: Axes = NO_AXES) -> Int[Array, ""]:
    """Returns the number of microbatches of a batch up to the last one that is not all zeros.

    A batch ramp fills the first microbatches, and leaves zeros in the others.

    Args:
      batch: The global batch.
      microbatches: Number of microbatches.
      axes: Model feature -> logical axes; see `axis_rules.batch_axes`.
    """
    used = jnp.zeros((passes.count_rows(batch),), bool)
    for name, x in batch.items():
        if "batch" in batch_axes(name, x.ndim, axes):
            used |= jnp.any(x != 0, axis=tuple(range(1, x.ndim)))
    of_microbatches = used.reshape(-1, microbatches).any(axis=0)  # row i is in microbatch i % microbatches
    return jnp.max(jnp.where(of_microbatches, jnp.arange(1, microbatches + 1), 0))


def check_batch_size(size: int, microbatches: int, shards: int) -> None:
    """Checks that every device has the same number of rows in every microbatch.

    Args:
      size: Rows of the global batch.
      microbatches: Number of microbatches.
      shards: Number of data-parallel shards.

    Raises:
      UserError: The batch size is not a multiple of their product, or the number of microbatches is not positive.
    """
    if microbatches < 1:
        raise UserError(f"MICROBATCHES={microbatches} is not positive. Give a positive integer.")
    multiple = microbatches * shards
    if size % multiple:
        fewer = " or fewer MICROBATCHES" if microbatches > 1 else ""
        raise UserError(
            f"BATCH_SIZE={size} must be a multiple of {multiple}: the mesh splits a batch into {shards} shards, times "
            f"{microbatches} microbatches. Give BATCH_SIZE={-(-size // multiple) * multiple}{fewer}."
        )


def normalizers(
    objective: Objective,
    batch: Mapping[str, Array],
    factor: LossNormalization,
    *,
    microbatches: int = 1,
    used: Int[Array, ""] | None = None,
) -> dict[str, Scalar]:
    """Computes the divisor of each loss term.

    Args:
      objective: The sums of its `target_weights` are the divisors for `"NUM_REAL_TARGET_TOKENS"`.
      batch: The whole global batch.
      factor: `"NUM_REAL_TARGET_TOKENS"` (the mean over weighted positions), a positive number, or None (the sum,
        which is T5X's default).
      microbatches: Number of microbatches, if not all are used.
      used: Number of microbatches whose targets count; None for all. See `count_used`.

    Returns:
      Term -> divisor.

    Raises:
      UserError: `factor` is another string or not positive.
    """
    weights = _total_weights(objective, batch, microbatches, used)
    if factor == "NUM_REAL_TARGET_TOKENS":
        return {name: jnp.maximum(weight, 1e-9) for name, weight in weights.items()}
    if factor is None:
        return {name: jnp.ones((), jnp.float32) for name in weights}
    if isinstance(factor, str) or factor <= 0:
        raise UserError(
            f"LOSS_NORMALIZING_FACTOR={factor!r} is invalid. Give 'NUM_REAL_TARGET_TOKENS', a positive number, or None "
            "for a sum."
        )
    return {name: jnp.asarray(factor, jnp.float32) for name in weights}


def _total_weights(
    objective: Objective, batch: Mapping[str, Array], microbatches: int, used: Int[Array, ""] | None
) -> dict[str, Scalar]:
    if used is None:
        return passes.total_weights(objective, batch)
    stacked = split_batch(batch, microbatches, objective.features.axes)

    def add(index, total):
        return _sum(total, passes.total_weights(objective, _microbatch(stacked, index)))

    shapes = jax.eval_shape(lambda: passes.total_weights(objective, _microbatch(stacked, 0)))
    return jax.lax.fori_loop(0, used, add, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))


def _microbatch(stacked: Mapping[str, Array], index: Int[Array, ""] | int) -> dict[str, Array]:
    """Returns one of the microbatches of `split_batch`."""
    return {name: jax.lax.dynamic_index_in_dim(x, index, keepdims=False) for name, x in stacked.items()}


def factors_at(objective: Objective, step: Int[Array, ""] | int, normalize: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Returns the factor of each term in the loss: its coefficient at a step from 0, divided by its normalizer."""
    coefficients = {name: each(step) if callable(each) else each for name, each in objective.coefficients.items()}
    return {name: each / normalize[name] for name, each in coefficients.items()}


def keys_of_step(objective: Objective, key: jax.Array, batch: Mapping[str, Array], *, dropout: bool = True) -> Keys:
    """Returns the random keys of a training step.

    Args:
      objective: If it `draws`, it gets `Keys.rows` and `Keys.step`.
      key: Random key of the step.
      batch: The global batch.
      dropout: Whether the model gets a dropout key.
    """
    own = Keys(dropout=key if dropout else None)
    if not objective.draws:
        return own
    rows = row_keys(jax.random.fold_in(key, _ROWS), jnp.arange(passes.count_rows(batch)))
    return own.replace(rows=rows, step=jax.random.fold_in(key, _STEP))


def with_row_keys(batch: Mapping[str, Array], keys: Keys) -> Mapping[str, Array]:
    """Adds the keys of the rows to a global batch, so that they are split like a feature."""
    return batch if keys.rows is None else {**batch, _ROW_KEYS: keys.rows}


def loss_of_rows(
    objective: Objective, params: Any, rows: Mapping[str, Array], keys: Keys, factors: Mapping[str, Scalar]
) -> tuple[Scalar, passes.Terms, dict[str, Array]]:
    """Computes the loss of rows, its terms, and the arrays for the next stages and the next batch.

    `passes.loss` describes the first two.

    Args:
      objective: See `objectives.base.Objective`.
      params: What the objective reads; see `assemble`.
      rows: A batch or a microbatch of `with_row_keys`.
      keys: The other keys.
      factors: Term -> factor of its sum.
    """
    features = {name: x for name, x in rows.items() if name != _ROW_KEYS}
    found = passes.forward(objective, params, features, keys=keys.replace(rows=rows.get(_ROW_KEYS)))
    return *passes.loss(found, factors), {**found.next_stage_features, **as_features(found.carry)}


def _sum(total: Any, added: Any) -> Any:
    return jax.tree.map(jnp.add, total, added)


def compute(
    objective: Objective,
    params: Any,
    frozen: Frozen,
    batch: Mapping[str, Array],
    *,
    keys: Keys,
    microbatches: int,
    normalize: Mapping[str, Scalar],
    used: Int[Array, ""] | None = None,
    step: Int[Array, ""] | int = 0,
    gather: Gathering = "per_use",
    accumulate: Callable[[Any, Any], Any] = _sum,
) -> tuple[Any, Any, dict[str, Array]]:
    """Computes the gradient of the normalized loss over the whole batch, and the summed metrics.

    Args:
      objective: See `objectives.base.Objective`.
      params: The trainable parameters.
      frozen: Arrays that are not differentiated.
      batch: The global batch.
      keys: Random keys of this step; see `keys_of_step`.
      microbatches: Number of microbatches, which run one after the other.
      normalize: The divisor of each term; see `normalizers`.
      used: Number of microbatches to compute, if the others are zeros; None for all. See `count_used`.
      step: The step of the update, counted from 0, for coefficients that are schedules.
      gather: When parameters are gathered and gradients reduced; see `gathering`.
      accumulate: Adds the gradients of a microbatch to those before it.

    Returns:
      Float32 gradients shaped like `params`; metrics as `{name: (sum, weight)}`; and the arrays `[batch, …]` that the
      objective hands on to the next stages or that its networks carry into the next batch.
    """

    def of_rows(params, constants, batch, key):
        frozen, normalize, step, step_key, used = constants
        factors = factors_at(objective, step, normalize)

        def loss(params, microbatch, key):
            keys = Keys(dropout=key, step=step_key)
            total, terms, handed = loss_of_rows(objective, assemble(params, frozen), microbatch, keys, factors)
            return total, (terms.metrics | {"objective": (total, jnp.ones((), jnp.float32))}, handed)

        return _accumulated(
            jax.grad(loss, has_aux=True), params, batch, key, microbatches, objective.features.axes, accumulate, used
        )

    constants = (frozen, normalize, step, keys.step, used)
    batch = with_row_keys(batch, keys)
    if gather == "per_step":
        (grads, metrics), handed = gathering.sum_over_rows(
            of_rows, params, constants, batch, keys.dropout, objective.features.axes
        )
        grads = partitioning.shard_tree(grads)
    else:
        (grads, metrics), handed = of_rows(params, constants, batch, keys.dropout)
    metrics["objective"] = (metrics["objective"][0], jnp.ones((), jnp.float32))
    return grads, metrics, handed


def _accumulated(
    differentiate: Callable,
    params: Any,
    batch: Mapping[str, Array],
    key: jax.Array | None,
    microbatches: int,
    axes: Axes,
    accumulate: Callable[[Any, Any], Any],
    used: Int[Array, ""] | None,
) -> tuple[tuple[Any, Any], dict[str, Array]]:
    """Calls `differentiate(params, microbatch, key)` for all microbatches, or the first `used`, one after the other.

    Returns:
      The sums over microbatches, float32 gradients and metrics, and the handed arrays of all rows.
    """

    def compute_microbatch(microbatch, index):
        microbatch_key = None if key is None else jax.random.fold_in(key, index)
        grads, (metrics, handed) = differentiate(params, microbatch, microbatch_key)
        grads = jax.tree.map(lambda gradient: gradient.astype(jnp.float32), grads)
        return (partitioning.shard_tree(grads), metrics), handed

    if microbatches == 1:
        return compute_microbatch(batch, 0)
    stacked = split_batch(batch, microbatches, axes)

    def compute_next(total, indexed):
        index, microbatch = indexed
        sums, handed = compute_microbatch(microbatch, index)
        return (accumulate(total[0], sums[0]), _sum(total[1], sums[1])), handed

    first = {name: feature[0] for name, feature in stacked.items()}
    shapes, shapes_of_handed = jax.eval_shape(compute_microbatch, first, 0)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    if used is None:
        sums, handed = jax.lax.scan(compute_next, zeros, (jnp.arange(microbatches), stacked))
        return sums, {name: _joined(name, x, axes) for name, x in handed.items()}

    def compute_at(index, carried):
        total, handed = carried
        total, own = compute_next(total, (index, _microbatch(stacked, index)))
        return total, {name: jax.lax.dynamic_update_index_in_dim(x, own[name], index, 0) for name, x in handed.items()}

    handed = {name: jnp.zeros((microbatches, *leaf.shape), leaf.dtype) for name, leaf in shapes_of_handed.items()}
    sums, handed = jax.lax.fori_loop(0, used, compute_at, (zeros, handed))
    return sums, {name: _joined(name, x, axes) for name, x in handed.items()}


def _joined(name: str, x: Array, axes: Axes) -> Array:
    """Joins `[microbatches, rows, …]` to `[batch, …]`, the inverse of `split_batch`."""
    rows = x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
    return partitioning.shard(rows, *batch_axes(name, rows.ndim, axes))
