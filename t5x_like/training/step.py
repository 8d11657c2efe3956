"""One training step: for each stage of the objective, gradients over microbatches, clipping and the update."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like import optimizers, partitioning
from t5x_like.adapters.lifecycle import Lifecycle
from t5x_like.axis_rules import CARRY
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import FIRST_NAMED_KEY
from t5x_like.objectives import gradients, reused_batches
from t5x_like.objectives.base import Objective
from t5x_like.objectives.variables import Frozen, assemble
from t5x_like.training.recipe import Update
from t5x_like.training.stages import SINGLE_STAGE, are_declared, of_objective
from t5x_like.training.state import TrainState, update_average

# Index of the key of `Objective.prepare` among the keys derived from the key of a step, of which `gradients` has more.
PREPARE_KEY = FIRST_NAMED_KEY

Scalar = Float[Array, ""]


def make_train_step(
    objective: Objective,
    optimizer: optimizers.Optimizer,
    update: Update,
    *,
    dropout: bool = True,
    count_tokens: Sequence[str] = (),
    hooks: Lifecycle,
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
      update: Microbatches, clipping, normalization and averages.
      dropout: Whether the model gets a dropout key.
      count_tokens: Features whose non-zero entries are counted as `tokens`.
      hooks: The hooks of the adapters of the run, `Lifecycle.of(configs)`.

    Returns:
      The function.

    Raises:
      UserError: `update.microbatches` is not positive.
    """
    if update.microbatches < 1:
        raise UserError(f"MICROBATCHES={update.microbatches} is not positive. Give a positive integer.")

    stages = of_objective(objective, optimizer, update.max_grad_norm, hooks)
    several = are_declared(stages)

    def train_step(state: TrainState, frozen: Frozen, batch: Mapping[str, Array]):
        step_key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        used = None
        if update.batch_ramp is not None:
            used = gradients.count_used(batch, update.microbatches, objective.features.axes)
        batch = reused_batches.prepare(
            *(objective, assemble(state.params, frozen), batch, reused_batches.kept_of(state.carry)),
            key=jax.random.fold_in(step_key, PREPARE_KEY),
            step=state.step,
        )
        one, zero = jnp.ones((), jnp.float32), jnp.zeros((), jnp.int32)
        params, opt_states, grad_norms = state.params, {}, {}
        features = {**batch, **{name: x[...] for name, x in state.carry.items() if name.startswith(CARRY)}}
        metrics = {} if used is None else {"batch_fraction": (used / update.microbatches, one)}
        for index, (name, stage) in enumerate(stages.items()):
            key = jax.random.fold_in(step_key, index) if several else step_key
            trainable, rest = stage.split(params)
            constants = frozen.replace(params=optimizers.merge(rest, frozen.params))
            normalize = gradients.normalizers(
                stage.objective,
                features,
                update.loss_normalizing_factor,
                microbatches=update.microbatches,
                used=used,
            )
            grads, stage_metrics, outputs = gradients.compute(
                stage.objective,
                trainable,
                constants,
                features,
                keys=gradients.keys_of_step(stage.objective, key, features, dropout=dropout),
                microbatches=update.microbatches,
                normalize=normalize,
                used=used,
                step=state.step,
                gather=update.gather_parameters,
                accumulate=hooks.accumulate,
            )
            trainable, observed = hooks.split(trainable)
            grads, observations = hooks.split(grads)
            grad_norms[name] = optimizers.global_norm(grads)
            if stage.max_grad_norm is not None:
                grads = optimizers.clip_groups(grads, trainable, stage.max_grad_norm, stage.optimizer.groups)
            opt_state = state.opt_state[name] if several else state.opt_state
            updates, opt_states[name] = stage.optimizer.update(grads, opt_state, trainable, step=state.step)
            trainable = jax.tree.map(jnp.add, trainable, partitioning.shard_tree(updates))
            trainable = optimizers.merge(trainable, hooks.update_observed(observed, observations))
            params = optimizers.merge(trainable, rest)
            metrics = _merge_metrics(metrics, stage_metrics)
            features = {**features, **outputs}

        grad_norm = _norm_of_stages(grad_norms)
        finite = jnp.isfinite(grad_norm) & jnp.isfinite(metrics["objective"][0])
        params = _select(finite, params, state.params)
        params = hooks.after_update(params, frozen.params, state.step + 1)
        param_norm = optimizers.global_norm(hooks.split(params)[0])
        opt_state = opt_states if several else opt_states[SINGLE_STAGE]
        opt_state = _select(_computed_after(param_norm, finite), opt_state, state.opt_state)
        skipped = jnp.where(finite, 0, 1)
        average = state.average
        if update.ema_decay is not None:
            number = state.step + 1 - state.skipped
            average = _select(finite, update_average(average, params, update.ema_decay, number), average)
        elif optimizer.averages is not None:
            average = optimizer.averages(params, opt_state)
        if average is not None:
            average = hooks.after_update(average, frozen.params, state.step + 1)
        new_state = state.replace(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            average=average,
            skipped=state.skipped + skipped,
            skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
            carry={
                name: old.replace(
                    # What several updates read does not depend on the update.
                    jnp.where(finite, features[name], old[...]) if name.startswith(CARRY) else features[name]
                )
                for name, old in state.carry.items()
            },
        )
        metrics |= {
            "tokens": (sum((jnp.count_nonzero(batch[name]) for name in count_tokens), zero).astype(jnp.float32), one),
            "grad_norm": (grad_norm, one),
            "param_norm": (param_norm, one),
            "skipped": (new_state.skipped.astype(jnp.float32), one),
            "skipped_in_a_row": (new_state.skipped_in_a_row.astype(jnp.float32), one),
            "learning_rate": (optimizer.learning_rate(state.step), one),
            **hooks.metrics(params, frozen.params),
        }
        for name, stage in stages.items():
            if several:
                metrics[f"learning_rate/{name}"] = (stage.optimizer.learning_rate(state.step), one)
                metrics[f"grad_norm/{name}"] = (grad_norms[name], one)
        return new_state, metrics

    return train_step


def _merge_metrics(metrics: Mapping[str, Any], stage_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the metrics of a stage to the metrics of earlier stages. `objective` is the sum over the stages."""
    merged = {**metrics, **stage_metrics}
    if "objective" in metrics:
        merged["objective"] = (metrics["objective"][0] + stage_metrics["objective"][0], stage_metrics["objective"][1])
    return merged


def _norm_of_stages(norms: Mapping[str, Scalar]) -> Scalar:
    """Returns the norm of the gradients of all stages together."""
    if len(norms) == 1:
        return next(iter(norms.values()))
    return jnp.sqrt(sum(jnp.square(norm) for norm in norms.values()))


def _select(condition: Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def _computed_after(norm: Scalar, condition: Array) -> Array:
    """Returns a condition that a program for CPUs can only compute after a norm.

    XLA on CPU updates the moments of Adam and the parameters in separate loops, which all read the old moments. Unless
    the data say that the parameters are first, it copies all moments. `norm` is a norm of the new parameters.
    """
    return condition & ~(norm < 0) if partitioning.bound_platform() == "cpu" else condition
