"""The training step of objectives that update rows of tables; see `objectives.row_updates`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t5x_like import optimizers, parameters
from t5x_like.errors import UserError
from t5x_like.objectives.base import Objective
from t5x_like.objectives.row_updates import RowObjective, Tables
from t5x_like.objectives.variables import Frozen
from t5x_like.optimizers.rows import RowOptimizer
from t5x_like.training.recipe import Update
from t5x_like.training.state import TrainState


def check(objective: Objective, optimizer: optimizers.Optimizer, update: Update) -> None:
    """Checks that the settings of a step have an effect.

    Raises:
      UserError: The optimizer updates whole parameters, or a setting is about gradients of whole parameters.
    """
    name = type(objective).__name__
    if not isinstance(optimizer, RowOptimizer):
        raise UserError(
            f"OPTIMIZER: {name} updates rows of tables. Give --gin_file=optimizers/row_sgd.gin or another RowOptimizer."
        )
    if optimizer.groups:
        named = ", ".join(map(str, optimizer.groups))
        raise UserError(
            f"PARAMETER_GROUPS: {name} trains all rows that it reads alike, without the groups {named}. Remove the "
            "file that sets them, such as optimizers/layer_decay.gin."
        )
    for field, setting in (
        ("microbatches", "MICROBATCHES"),
        ("batch_ramp", "BATCH_RAMP"),
        ("max_grad_norm", "MAX_GRAD_NORM"),
        ("ema_decay", "EMA_DECAY"),
        ("gather_parameters", "GATHER_PARAMETERS"),
    ):
        if (value := getattr(update, field)) != getattr(Update(), field):
            raise UserError(
                f"{setting}={value!r}: {name} updates rows of tables, without a gradient of the batch. Remove it."
            )


def make_train_step(
    objective: RowObjective, optimizer: RowOptimizer, *, count_tokens: Sequence[str] = ()
) -> Callable[[TrainState, Frozen, Mapping[str, Array]], tuple[TrainState, dict[str, Any]]]:
    """Creates `train_step(state, frozen, batch) -> (state, metrics)`, as `step.make_train_step` does.

    An update that is not finite is left out, and the step counts as skipped; others of the step are kept. Whole tables
    are only read for `param_norm`.

    Args:
      objective: The objective.
      optimizer: Updates the rows.
      count_tokens: Features whose non-zero entries are counted as `tokens`.
    """

    def train_step(state: TrainState, frozen: Frozen, batch: Mapping[str, Array]):
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        rate = optimizer.learning_rate(state.step)
        tables = Tables(parameters.named_leaves(state.params), parameters.named_leaves(state.opt_state))
        found = objective.update(tables, batch, optimizer.apply, rate=rate, key=key)
        params = parameters.rebuild(state.params, found.tables.values)
        opt_state = parameters.rebuild(state.opt_state, found.tables.states)
        finite = jnp.isfinite(found.metrics["loss"][0])
        skipped = jnp.where(finite, 0, 1)
        new_state = state.replace(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            skipped=state.skipped + skipped,
            skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
        )
        one, zero = jnp.ones((), jnp.float32), jnp.zeros((), jnp.int32)
        tokens = sum((jnp.count_nonzero(batch[name]) for name in count_tokens), zero)
        metrics = {
            **found.metrics,
            "tokens": (tokens.astype(jnp.float32), one),
            "param_norm": (optimizers.global_norm(params), one),
            "skipped": (new_state.skipped.astype(jnp.float32), one),
            "skipped_in_a_row": (new_state.skipped_in_a_row.astype(jnp.float32), one),
            "learning_rate": (rate, one),
        }
        return new_state, metrics

    return train_step
