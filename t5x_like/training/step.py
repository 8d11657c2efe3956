"""One training step: gradients over microbatches, clipping and the optimizer update.

The step differentiates  Σ_t coefficient_t · sum_t / W_t , where W_t is the total weight of loss term t over the whole
global batch. W_t depends on the data alone and is computed before any gradient, so the result does not depend on the
number of microbatches or devices.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, UInt32

from t5x_like import optimizers, partitioning
from t5x_like.axis_rules import NO_AXES, Axes, batch_axes
from t5x_like.errors import UserError
from t5x_like.objectives.base import Objective
from t5x_like.training import gathering
from t5x_like.training.gathering import Gathering

# Number of the key of `Objective.prepare` among the keys derived from that of a step. Microbatches count from 0.
_PREPARE = 2**31

Scalar = Float[Array, ""]
LossNormalization = Literal["NUM_REAL_TARGET_TOKENS"] | float | None


@struct.dataclass
class TrainState:
    """The state that a training step updates and a checkpoint stores.

    Attributes:
      step: Number of batches consumed so far.
      params: The trainable parameters, `{"model": …, "objective": …}`.
      opt_state: The optimizer's state.
      rng: Raw data of the run's random key; the key of a step is `fold_in(rng, step)`.
      skipped: Number of updates skipped because the loss or the gradient was not finite.
      skipped_in_a_row: How many of them came immediately before this step.
    """

    step: Int[Array, ""]
    params: Any
    opt_state: Any
    rng: UInt32[Array, " words"]
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]


@struct.dataclass
class Frozen:
    """The arrays of a run that are not trained. They are arguments of the step, without gradient or optimizer state.

    Attributes:
      params: The frozen parameters of the run, with None in place of the trainable ones; a checkpoint stores them.
      teachers: Teacher -> its parameters, `{"model": …, "objective": …}`; never stored.
    """

    params: Any
    teachers: Mapping[str, Any] = struct.field(default_factory=dict)


def assemble(params: Any, frozen: Frozen) -> dict[str, Any]:
    """Returns what an objective reads.

    Args:
      params: The trainable parameters.
      frozen: The other arrays.

    Returns:
      `{"model": …, "objective": …}`, and `"teachers"` if there are any.
    """
    merged = optimizers.merge(params, frozen.params)
    return {**merged, "teachers": frozen.teachers} if frozen.teachers else merged


def create_state(params: Any, optimizer: optimizers.Optimizer, seed: int) -> TrainState:
    """Creates the state before the first update.

    Args:
      params: The trainable parameters.
      optimizer: Initializes its own state.
      seed: Seed of dropout.
    """

    def zero():  # a separate array for each field, because a buffer can be donated only once
        return jnp.zeros((), jnp.int32)

    return TrainState(
        step=zero(),
        params=params,
        opt_state=optimizer.init(params),
        rng=jax.random.key_data(jax.random.key(seed)),
        skipped=zero(),
        skipped_in_a_row=zero(),
    )


def split_batch(batch: Mapping[str, Array], microbatches: int, axes: Axes = NO_AXES) -> dict[str, Array]:
    """Reshapes features `[batch, …]` to `[microbatches, batch / microbatches, …]`; each device keeps its rows.

    The choices of a row are in the same microbatch.

    Args:
      batch: The global batch.
      microbatches: Number of microbatches.
      axes: Model feature -> logical axes; see `axis_rules.batch_axes`.

    Returns:
      The features with a leading dimension of microbatches.

    Raises:
      UserError: The batch size is not a multiple of microbatches times data-parallel shards.
    """
    size = next(iter(batch.values())).shape[0]
    check_batch_size(size, microbatches, partitioning.batch_shards())

    def split(name, x):
        # Row i goes to microbatch i % microbatches, so that no row moves to another device.
        rows = x.reshape(size // microbatches, microbatches, *x.shape[1:]).swapaxes(0, 1)
        return partitioning.shard(rows, None, *batch_axes(name, x.ndim, axes))

    return {name: split(name, x) for name, x in batch.items()}


def check_batch_size(size: int, microbatches: int, shards: int) -> None:
    """Checks that every device has the same number of rows in every microbatch.

    Args:
      size: Rows of the global batch.
      microbatches: Number of microbatches.
      shards: Number of data-parallel shards.

    Raises:
      UserError: The batch size is not a multiple of their product.
    """
    multiple = microbatches * shards
    if size % multiple:
        fewer = " or fewer MICROBATCHES" if microbatches > 1 else ""
        raise UserError(
            f"BATCH_SIZE={size} must be a multiple of {multiple}: the mesh splits a batch into {shards} shards, times "
            f"{microbatches} microbatches. Give BATCH_SIZE={-(-size // multiple) * multiple}{fewer}."
        )


def normalizers(objective: Objective, batch: Mapping[str, Array], factor: LossNormalization) -> dict[str, Scalar]:
    """Computes the divisor of each loss term.

    Args:
      objective: Its `weights` are the divisors for `"NUM_REAL_TARGET_TOKENS"`.
      batch: The whole global batch.
      factor: `"NUM_REAL_TARGET_TOKENS"` (the mean over weighted positions), a positive number, or None (the sum,
        which is T5X's default).

    Returns:
      Term -> divisor.

    Raises:
      UserError: `factor` is another string or not positive.
    """
    weights = objective.weights(batch)
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


def factors_at(objective: Objective, step: Int[Array, ""] | int, normalize: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Returns the factor of each term in the loss: its coefficient at a step from 0, divided by its normalizer."""
    coefficients = {name: each(step) if callable(each) else each for name, each in objective.coefficients.items()}
    return {name: each / normalize[name] for name, each in coefficients.items()}


def gradients(
    objective: Objective,
    params: Any,
    frozen: Frozen,
    batch: Mapping[str, Array],
    key: jax.Array | None,
    microbatches: int,
    normalize: Any,
    step: Int[Array, ""] | int = 0,
    gather: Gathering = "per_use",
) -> tuple[Any, Any]:
    """Computes the gradient of the normalized loss over the whole batch, and the summed metrics.

    Args:
      objective: See `objectives.base.Objective`.
      params: The trainable parameters.
      frozen: Arrays that are not differentiated.
      batch: The global batch.
      key: Dropout key of this step, or None.
      microbatches: Number of microbatches, which run one after the other.
      normalize: The divisor of each term; see `normalizers`.
      step: The step of the update, counted from 0, for coefficients that are schedules.
      gather: When parameters are gathered and gradients reduced; see `gathering`.

    Returns:
      `(gradients, metrics)`: float32 gradients shaped like `params`, and metrics as `{name: (sum, weight)}`.
    """

    def of_rows(params, constants, batch, key):
        frozen, normalize, step = constants
        factors = factors_at(objective, step, normalize)

        def loss(params, microbatch, key):
            total, terms = objective.loss_and_terms(assemble(params, frozen), microbatch, factors, dropout_key=key)
            return total, terms.metrics | {"objective": (total, jnp.ones((), jnp.float32))}

        return _accumulated(jax.grad(loss, has_aux=True), params, batch, key, microbatches, objective.features.axes)

    constants = (frozen, normalize, step)
    if gather == "per_step":
        grads, metrics = gathering.sum_over_rows(of_rows, params, constants, batch, key, objective.features.axes)
        grads = partitioning.shard_tree(grads)
    else:
        grads, metrics = of_rows(params, constants, batch, key)
    metrics["objective"] = (metrics["objective"][0], jnp.ones((), jnp.float32))
    return grads, metrics


def _accumulated(
    differentiate: Callable,
    params: Any,
    batch: Mapping[str, Array],
    key: jax.Array | None,
    microbatches: int,
    axes: Axes,
) -> tuple[Any, Any]:
    """Returns the sums over microbatches of `differentiate(params, microbatch, key)`: float32 gradients and metrics."""

    def one(microbatch, index):
        microbatch_key = None if key is None else jax.random.fold_in(key, index)
        grads, metrics = differentiate(params, microbatch, microbatch_key)
        grads = jax.tree.map(lambda gradient: gradient.astype(jnp.float32), grads)
        return partitioning.shard_tree(grads), metrics

    if microbatches == 1:
        return one(batch, 0)
    stacked = split_batch(batch, microbatches, axes)

    def accumulate(total, indexed):
        index, microbatch = indexed
        return jax.tree.map(jnp.add, total, one(microbatch, index)), None

    shapes = jax.eval_shape(one, {name: feature[0] for name, feature in stacked.items()}, 0)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(accumulate, zeros, (jnp.arange(microbatches), stacked))[0]


def make_train_step(
    objective: Objective,
    optimizer: optimizers.Optimizer,
    *,
    microbatches: int = 1,
    max_grad_norm: float | None = None,
    loss_normalizing_factor: LossNormalization = "NUM_REAL_TARGET_TOKENS",
    gather: Gathering = "per_use",
    dropout: bool = True,
    count_tokens: Sequence[str] = (),
) -> Callable[[TrainState, Frozen, Mapping[str, Array]], tuple[TrainState, dict[str, tuple[Scalar, Scalar]]]]:
    """Creates `train_step(state, frozen, batch) -> (state, metrics)`, to be jitted with `Partitioner.jit`.

    An update is skipped if its loss or gradient is not finite: parameters and optimizer state keep their values, the
    step and the counters of skipped updates advance. Metrics are (sum, weight) pairs. Besides those of the objective
    they are `grad_norm` (before clipping), `param_norm` (after the update), `learning_rate`, `tokens`, `skipped` and
    `skipped_in_a_row`.

    Args:
      objective: See `objectives.base.Objective`.
      optimizer: See `optimizers`.
      microbatches: Number of microbatches per batch.
      max_grad_norm: Gradients with a larger global norm are scaled down to it; None disables clipping.
      loss_normalizing_factor: See `normalizers`.
      gather: When parameters are gathered and gradients reduced; see `gathering`.
      dropout: Whether the model gets a dropout key.
      count_tokens: Features whose non-zero entries are counted as `tokens`.

    Returns:
      The function.

    Raises:
      UserError: `microbatches` is not positive.
    """
    if microbatches < 1:
        raise UserError(f"MICROBATCHES={microbatches} is not positive. Give a positive integer.")

    prepare: Callable | None = getattr(objective, "prepare", None)  # optional, see `Objective`

    def train_step(state: TrainState, frozen: Frozen, batch: Mapping[str, Array]):
        step_key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        if prepare is not None:
            prepare_key = jax.random.fold_in(step_key, _PREPARE)
            batch = prepare(assemble(state.params, frozen), batch, key=prepare_key, step=state.step)
        normalize = normalizers(objective, batch, loss_normalizing_factor)
        key = step_key if dropout else None
        grads, metrics = gradients(
            objective, state.params, frozen, batch, key, microbatches, normalize, state.step, gather
        )
        norm = optimizers.global_norm(grads)
        if max_grad_norm is not None:
            grads, _ = optimizers.clip_by_global_norm(grads, max_grad_norm)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params, step=state.step)
        params = jax.tree.map(jnp.add, state.params, partitioning.shard_tree(updates))

        finite = jnp.isfinite(norm) & jnp.isfinite(metrics["objective"][0])
        params = _select(finite, params, state.params)
        param_norm = optimizers.global_norm(params)
        opt_state = _select(_after(param_norm, finite), opt_state, state.opt_state)
        skipped = jnp.where(finite, 0, 1)
        new_state = state.replace(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            skipped=state.skipped + skipped,
            skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
        )
        one, zero = jnp.ones((), jnp.float32), jnp.zeros((), jnp.int32)
        metrics |= {
            "tokens": (sum((jnp.count_nonzero(batch[name]) for name in count_tokens), zero).astype(jnp.float32), one),
            "learning_rate": (optimizer.learning_rate(state.step), one),
            "grad_norm": (norm, one),
            "param_norm": (param_norm, one),
            "skipped": (new_state.skipped.astype(jnp.float32), one),
            "skipped_in_a_row": (new_state.skipped_in_a_row.astype(jnp.float32), one),
        }
        return new_state, metrics

    return train_step


def _select(condition: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def _after(norm: Scalar, condition: Array) -> Array:
    """Returns a condition that a program for CPUs can only compute after a norm.

    XLA on CPU updates the moments of Adam and the parameters in separate loops, which all read the old moments. Unless
    the data say that the parameters are first, it copies all moments.

    Args:
      norm: a norm of the new parameters.
      condition: the condition.
    """
    return condition & ~(norm < 0) if partitioning.bound_platform() == "cpu" else condition


def make_eval_step(objective: Objective) -> Callable[[Any, Mapping[str, Array]], dict[str, tuple[Scalar, Scalar]]]:
    """Creates `eval_step(params, batch) -> {metric: (sum, weight)}`, without dropout.

    Args:
      objective: The objective whose metrics are computed.
    """

    def eval_step(params: Any, batch: Mapping[str, Array]):
        return objective.terms(params, batch, dropout_key=None).metrics

    return eval_step
