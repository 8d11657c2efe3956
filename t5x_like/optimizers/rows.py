"""Optimizers that update the rows of tables that a step has read, and no others."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.optimizers.base import Optimizer, as_schedule
from t5x_like.optimizers.groups import ParameterGroup
from t5x_like.optimizers.schedules import Schedule
from t5x_like.recorded import recorded

Table = Float[Array, "rows ..."]
# apply(table, state, ids, gradients, rate) -> (table, state)
Apply = Callable[[Table, Table | None, Int[Array, " n"], Float[Array, "n ..."], Any], tuple[Table, Table | None]]


@dataclasses.dataclass(frozen=True)
class RowOptimizer(Optimizer):
    """An optimizer of the rows of tables, for objectives that are `row_updates.RowObjective`.

    Its state is a tree like the parameters, or None.

    Attributes:
      apply: `apply(table, state, ids, gradients, rate) -> (table, state)` updates the rows `ids` `[n]` of a table by
        their gradients `[n, …]`. A row may occur several times. `state` is like the table, or None.
    """

    apply: Apply = None


def _refuse(*_, **__):
    raise UserError(
        "OPTIMIZER: updates rows of tables, but the objective has gradients of all parameters. Give another optimizer, "
        "such as --gin_file=optimizers/adamw.gin."
    )


@recorded
def row_sgd(learning_rate: float | Schedule, *, groups: Sequence[ParameterGroup] = ()) -> RowOptimizer:
    """Creates stochastic gradient descent on rows: each occurrence of a row adds -rate · gradient.

    Args:
      learning_rate: A number, or a schedule.
      groups: Parameter groups, which the training step of rows refuses; see `training.row_step.check`.

    Returns:
      The optimizer, without state.
    """

    def apply(table, state, ids, gradients, rate):
        return table.at[ids].add(-rate * gradients), state

    return RowOptimizer(lambda params: None, _refuse, as_schedule(learning_rate), tuple(groups), apply=apply)


@recorded
def row_adagrad(
    learning_rate: float | Schedule, *, initial_accumulator: float = 1.0, groups: Sequence[ParameterGroup] = ()
) -> RowOptimizer:
    """Creates AdaGrad on rows (Duchi et al. 2011): row -= rate · g / √a, then a += g².

    All occurrences of a row in one update read the same a.

    Args:
      learning_rate: A number, or a schedule.
      initial_accumulator: Initial value of a.
      groups: See `row_sgd`.

    Returns:
      The optimizer. Its state has the a of each entry.

    Raises:
      UserError: The accumulator is not positive.
    """
    if not initial_accumulator > 0:
        raise UserError(f"initial_accumulator={initial_accumulator} is not positive. Give a positive number.")

    def init(params):
        return parameters.map_named(lambda name, leaf: jnp.full(leaf.shape, initial_accumulator, jnp.float32), params)

    def apply(table, state, ids, gradients, rate):
        steps = gradients / jnp.sqrt(state[ids])
        return table.at[ids].add(-rate * steps), state.at[ids].add(jnp.square(gradients))

    return RowOptimizer(init, _refuse, as_schedule(learning_rate), tuple(groups), apply=apply)
