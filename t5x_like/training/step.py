"""One update: microbatches, gradients, clipping, apply. Shared by every training loop.

The gradient is that of  Σ_t coefficient_t · sum_t / W_t , where W_t is the weight of term t over the whole global
batch. W depends on data alone and is computed before any gradient, so the result does not depend on how many
microbatches or devices share the batch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, UInt32

from t5x_like import optimizers, partitioning
from t5x_like.errors import UserError

Scalar = Float[Array, ""]
LossNormalization = Literal["NUM_REAL_TARGET_TOKENS"] | float | None


@struct.dataclass
class TrainState:
    """Everything that changes from step to step, and all that a checkpoint holds of the optimisation.

    Attributes:
      step: batches consumed so far.
      params: the trainable parameters, `{"model": …, "objective": …}`.
      opt_state: the optimizer's state.
      rng: raw data of the run's key; the key of a step is `fold_in(rng, step)`.
      skipped: updates skipped because the loss or the gradient was not finite.
      skipped_in_a_row: how many of them immediately before this step.
    """

    step: Int[Array, ""]
    params: Any
    opt_state: Any
    rng: UInt32[Array, "words"]
    skipped: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]


def create_state(params: Any, optimizer: optimizers.Optimizer, seed: int) -> TrainState:
    """The state before the first update."""

    def zero():  # one array each: a buffer can be donated once only
        return jnp.zeros((), jnp.int32)

    return TrainState(
        step=zero(),
        params=params,
        opt_state=optimizer.init(params),
        rng=jax.random.key_data(jax.random.key(seed)),
        skipped=zero(),
        skipped_in_a_row=zero(),
    )


def split_batch(batch: Mapping[str, Array], microbatches: int) -> dict[str, Array]:
    """`[batch, …]` features as `[microbatches, batch / microbatches, …]`, every device keeping its own rows.

    Raises:
      UserError: the batch does not divide into that many microbatches over the devices.
    """
    size = next(iter(batch.values())).shape[0]
    shards = partitioning.batch_shards()
    if size % (microbatches * shards):
        raise UserError(
            f"BATCH_SIZE={size} does not divide into {microbatches} microbatches over {shards} data-parallel parts: "
            f"it must be a multiple of {microbatches * shards}"
        )

    def split(x):
        # Row i goes to microbatch i % microbatches, so that the split of `batch` over devices stays where it is.
        rows = x.reshape(size // microbatches, microbatches, *x.shape[1:]).swapaxes(0, 1)
        return partitioning.shard(rows, None, *(("batch", "length") + (None,) * x.ndim)[: x.ndim])

    return {name: split(x) for name, x in batch.items()}


def normalizers(objective: Any, batch: Mapping[str, Array], factor: LossNormalization) -> dict[str, Scalar]:
    """What each term's sum is divided by.

    Args:
      objective: its `weights` are used by `"NUM_REAL_TARGET_TOKENS"`.
      batch: the whole global batch.
      factor: `"NUM_REAL_TARGET_TOKENS"` (a mean over weighted positions), a number, or None (a plain sum, T5X's
        default).
    """
    weights = objective.weights(batch)
    if factor == "NUM_REAL_TARGET_TOKENS":
        return {name: jnp.maximum(weight, 1e-9) for name, weight in weights.items()}
    if factor is None:
        return {name: jnp.ones((), jnp.float32) for name in weights}
    if isinstance(factor, str) or factor <= 0:
        raise UserError(
            f"LOSS_NORMALIZING_FACTOR={factor!r}: give 'NUM_REAL_TARGET_TOKENS', a positive number, or None for a sum"
        )
    return {name: jnp.asarray(factor, jnp.float32) for name in weights}


def gradients(
    objective: Any,
    params: Any,
    frozen: Any,
    batch: Mapping[str, Array],
    key: jax.Array,
    microbatches: int,
    normalize: Any,
) -> tuple[Any, Any]:
    """The gradient of the normalised loss over the whole batch, and the summed metrics.

    Args:
      objective: see `objectives.base.Objective`.
      params: trainable parameters.
      frozen: parameters merged in that are not differentiated.
      batch: global batch.
      key: dropout key of this step, or None.
      microbatches: into how many parts the batch is split, one after the other; fewer activations are alive at once.
      normalize: the divisor of each term's sum.

    Returns:
      (gradients in float32 shaped like `params`, metrics as {name: (sum, weight)}).
    """

    def loss(params, part, key):
        terms = objective.terms(optimizers.merge(params, frozen), part, dropout_key=key)
        total = sum(objective.coefficients[name] * terms.sums[name] / normalize[name] for name in terms.sums)
        return total, terms.metrics | {"objective": (total, jnp.ones((), jnp.float32))}

    differentiate = jax.grad(loss, has_aux=True)

    def one(part, index):
        part_key = None if key is None else jax.random.fold_in(key, index)
        grads, metrics = differentiate(params, part, part_key)
        return partitioning.shard_tree(grads), metrics

    if microbatches == 1:
        grads, metrics = one(batch, 0)
    else:
        parts = split_batch(batch, microbatches)

        def accumulate(total, indexed):
            index, part = indexed
            return jax.tree.map(jnp.add, total, one(part, index)), None

        shapes = jax.eval_shape(one, {name: part[0] for name, part in parts.items()}, 0)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        (grads, metrics), _ = jax.lax.scan(accumulate, zeros, (jnp.arange(microbatches), parts))
    metrics["objective"] = (metrics["objective"][0], jnp.ones((), jnp.float32))
    return grads, metrics


def make_train_step(
    objective: Any,
    optimizer: optimizers.Optimizer,
    *,
    microbatches: int = 1,
    max_grad_norm: float | None = None,
    loss_normalizing_factor: LossNormalization = "NUM_REAL_TARGET_TOKENS",
    dropout: bool = True,
    count_tokens: Sequence[str] = (),
) -> Callable[[TrainState, Any, Mapping[str, Array]], tuple[TrainState, dict[str, tuple[Scalar, Scalar]]]]:
    """Builds `train_step(state, frozen, batch) -> (state, metrics)`; jit it with `Partitioner.jit`.

    An update whose loss or gradient is not finite is skipped: parameters and optimizer state stay, the step and the
    counters of skipped updates advance. Metrics are (sum, weight) pairs; `grad_norm` is the norm before clipping,
    `param_norm` after the update, `learning_rate` the one applied, `tokens` the number of non-zero entries of the
    features `count_tokens`.
    """
    if microbatches < 1:
        raise UserError(f"microbatches={microbatches} must be at least 1")

    def train_step(state: TrainState, frozen: Any, batch: Mapping[str, Array]):
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step) if dropout else None
        normalize = normalizers(objective, batch, loss_normalizing_factor)
        grads, metrics = gradients(objective, state.params, frozen, batch, key, microbatches, normalize)
        norm = optimizers.global_norm(grads)
        if max_grad_norm is not None:
            grads, _ = optimizers.clip_by_global_norm(grads, max_grad_norm)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params, step=state.step)
        params = jax.tree.map(jnp.add, state.params, partitioning.shard_tree(updates))

        finite = jnp.isfinite(norm) & jnp.isfinite(metrics["objective"][0])
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), (params, opt_state), (state.params, state.opt_state)
        )
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
            "param_norm": (optimizers.global_norm(params), one),
            "skipped": (new_state.skipped.astype(jnp.float32), one),
            "skipped_in_a_row": (new_state.skipped_in_a_row.astype(jnp.float32), one),
        }
        return new_state, metrics

    return train_step


def make_eval_step(objective: Any) -> Callable[[Any, Mapping[str, Array]], dict[str, tuple[Scalar, Scalar]]]:
    """Builds `eval_step(params, batch) -> {metric: (sum, weight)}`, without dropout."""

    def eval_step(params: Any, batch: Mapping[str, Array]):
        return objective.terms(params, batch, dropout_key=None).metrics

    return eval_step
