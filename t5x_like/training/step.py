"""One training step: for each stage of the objective, gradients over microbatches, clipping and the update."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import optimizers, partitioning
from t5x_like.adapters.lifecycle import Lifecycle
from t5x_like.errors import UserError
from t5x_like.objectives import gradients, passes
from t5x_like.objectives.base import Objective
from t5x_like.objectives.carry import as_features
from t5x_like.objectives.gathering import Gathering
from t5x_like.objectives.variables import Frozen, assemble
from t5x_like.training.stages import ONLY, are_declared, of_objective
from t5x_like.training.state import TrainState, update_average

# Index of the key of `Objective.prepare` among the keys derived from the key of a step. Microbatches count from 0, and
# `gradients` has further numbers.
_PREPARE = 2**31

Scalar = Float[Array, ""]


def make_train_step(
    objective: Objective,
    optimizer: optimizers.Optimizer,
    *,
    microbatches: int = 1,
    max_grad_norm: float | None = None,
    loss_normalizing_factor: gradients.LossNormalization = "NUM_REAL_TARGET_TOKENS",
    gather: Gathering = "per_use",
    ema_decay: float | None = None,
    dropout: bool = True,
    count_tokens: Sequence[str] = (),
    lifecycle: Lifecycle,
) -> Callable[[TrainState, Frozen, Mapping[str, Array]], tuple[TrainState, dict[str, tuple[Scalar, Scalar]]]]:
    """Creates `train_step(state, frozen, batch) -> (state, metrics)`, to be jitted with `Partitioner.jit`.

    An update is skipped if its loss or gradient is not finite: parameters, optimizer state and carry keep their values,
    the step and the counters of skipped updates advance. Metrics are (sum, weight) pairs: the metrics of the objective,
    `grad_norm` (before clipping), `param_norm` (after the update), `learning_rate`, `tokens`, `skipped`,
    `skipped_in_a_row`, and the metrics of adapters. With several stages, `grad_norm/STAGE` and
    `learning_rate/STAGE` belong to a stage.

    Args:
      objective: See `objectives.base.Objective`.
      optimizer: See `optimizers`.
      microbatches: Number of microbatches per batch.
      max_grad_norm: Gradients with a larger global norm are scaled down to it; None disables clipping.
      loss_normalizing_factor: See `gradients.normalizers`.
      gather: When parameters are gathered and gradients reduced; see `gathering`.
      ema_decay: Decay of the averages of `state.average`; None for no averages.
      dropout: Whether the model gets a dropout key.
      count_tokens: Features whose non-zero entries are counted as `tokens`.
      lifecycle: The hooks of the adapters of the run, `Lifecycle.of(configs)`.

    Returns:
      The function.

    Raises:
      UserError: `microbatches` is not positive.
    """
    if microbatches < 1:
        raise UserError(f"MICROBATCHES={microbatches} is not positive. Give a positive integer.")

    stages = of_objective(objective, optimizer, max_grad_norm, lifecycle)
    several = are_declared(stages)

    def train_step(state: TrainState, frozen: Frozen, batch: Mapping[str, Array]):
        step_key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        if objective.prepare is not None:
            prepare_key = jax.random.fold_in(step_key, _PREPARE)
            batch = objective.prepare(assemble(state.params, frozen), batch, key=prepare_key, step=state.step)
        one, zero = jnp.ones((), jnp.float32), jnp.zeros((), jnp.int32)
        params, opt_states, norms, metrics = state.params, {}, {}, {}
        rows = {**batch, **{name: x[...] for name, x in state.carry.items()}}
        for number, (name, stage) in enumerate(stages.items()):
            key = jax.random.fold_in(step_key, number) if several else step_key
            own, others = stage.split(params)
            fixed = frozen.replace(params=optimizers.merge(others, frozen.params))
            normalize = gradients.normalizers(stage.objective, rows, loss_normalizing_factor)
            keys = gradients.keys_of_step(stage.objective, key, rows, dropout=dropout)
            grads, found, handed = gradients.compute(
                stage.objective,
                own,
                fixed,
                rows,
                keys,
                microbatches,
                normalize,
                state.step,
                gather,
                lifecycle.accumulate,
            )
            (own, old), (grads, observations) = lifecycle.split(own), lifecycle.split(grads)
            norms[name] = optimizers.global_norm(grads)
            if stage.max_grad_norm is not None:
                grads = optimizers.clip_groups(grads, own, stage.max_grad_norm, stage.optimizer.groups)
            opt_state = state.opt_state[name] if several else state.opt_state
            updates, opt_states[name] = stage.optimizer.update(grads, opt_state, own, step=state.step)
            own = jax.tree.map(jnp.add, own, partitioning.shard_tree(updates))
            params = optimizers.merge(optimizers.merge(own, lifecycle.update_observed(old, observations)), others)
            metrics = _united(metrics, found)
            rows = {**rows, **handed}

        norm = _norm_of_all(norms)
        finite = jnp.isfinite(norm) & jnp.isfinite(metrics["objective"][0])
        params = _select(finite, params, state.params)
        params = lifecycle.after_update(params, frozen.params, state.step + 1)
        param_norm = optimizers.global_norm(lifecycle.split(params)[0])
        opt_state = opt_states if several else opt_states[ONLY]
        opt_state = _select(_after(param_norm, finite), opt_state, state.opt_state)
        skipped = jnp.where(finite, 0, 1)
        average = state.average
        if ema_decay is not None:
            number = state.step + 1 - state.skipped
            average = _select(finite, update_average(average, params, ema_decay, number), average)
            average = lifecycle.after_update(average, frozen.params, state.step + 1)
        new_state = state.replace(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            average=average,
            skipped=state.skipped + skipped,
            skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
            carry={name: old.replace(jnp.where(finite, rows[name], old[...])) for name, old in state.carry.items()},
        )
        metrics |= {
            "tokens": (sum((jnp.count_nonzero(batch[name]) for name in count_tokens), zero).astype(jnp.float32), one),
            "grad_norm": (norm, one),
            "param_norm": (param_norm, one),
            "skipped": (new_state.skipped.astype(jnp.float32), one),
            "skipped_in_a_row": (new_state.skipped_in_a_row.astype(jnp.float32), one),
            "learning_rate": (optimizer.learning_rate(state.step), one),
            **lifecycle.metrics(params, frozen.params),
        }
        for name, stage in stages.items():
            if several:
                metrics[f"learning_rate/{name}"] = (stage.optimizer.learning_rate(state.step), one)
                metrics[f"grad_norm/{name}"] = (norms[name], one)
        return new_state, metrics

    return train_step


def _united(metrics: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the metrics of a stage to the metrics of earlier stages. `objective` is the sum over the stages."""
    united = {**metrics, **found}
    if "objective" in metrics:
        united["objective"] = (metrics["objective"][0] + found["objective"][0], found["objective"][1])
    return united


def _norm_of_all(norms: Mapping[str, Scalar]) -> Scalar:
    """Returns the norm of the gradients of all stages together."""
    if len(norms) == 1:
        return next(iter(norms.values()))
    return jnp.sqrt(sum(jnp.square(norm) for norm in norms.values()))


def _select(condition: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def _after(norm: Scalar, condition: Array) -> Array:
    """Returns a condition that a program for CPUs can only compute after a norm.

    XLA on CPU updates the moments of Adam and the parameters in separate loops, which all read the old moments. Unless
    the data say that the parameters are first, it copies all moments. `norm` is a norm of the new parameters.
    """
    return condition & ~(norm < 0) if partitioning.bound_platform() == "cpu" else condition


def make_eval_step(objective: Objective) -> Callable[..., tuple[dict[str, tuple[Scalar, Scalar]], dict[str, Array]]]:
    """Creates `eval_step(params, batch, number, carry) -> ({metric: (sum, weight)}, carry)`, without dropout.

    Args:
      objective: The objective whose metrics are computed. What it draws for an example depends on the number of the
        example, which follows from the number of the batch, from 0. `carry` has what its networks carry from the batch
        before, as features of a batch.
    """

    def eval_step(params: Any, batch: Mapping[str, Array], number: Int[Array, ""], carry: Mapping[str, Array]):
        rows = {**batch, **carry}
        found = passes.forward_at_evaluation(objective, params, rows, first=number * passes.count_rows(batch))
        return passes.terms(found).metrics, as_features(found.carry)

    return eval_step
