"""The interface of objectives that update rows of tables, many times in a step, such as those of word vectors.

The published algorithms update the vectors of a few words after each pair of words. A gradient of whole tables would
cost a pass over them, and one update per batch learns worse than many small ones. Such an objective therefore makes
the updates of a step by itself, one after the other, and the optimizer changes only the rows of each.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.models.base import Batch
from t5x_like.objectives.base import Objective
from t5x_like.objectives.prediction import Scalar
from t5x_like.optimizers.rows import Apply


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tables:
    """The tables of a run and the states of their optimizer.

    Attributes:
      values: Name of a parameter -> its value.
      states: Name -> the state of the optimizer, like the table; empty without states.
    """

    values: Mapping[str, Array]
    states: Mapping[str, Array]

    def updated(
        self, apply: Apply, name: str, ids: Int[Array, " n"], gradients: Float[Array, "n ..."], rate: Any
    ) -> "Tables":
        """Returns the tables after an update of rows of one of them. Gradients that are not finite change nothing.

        Args:
          apply: The optimizer; see `optimizers.rows.RowOptimizer`.
          name: Name of the table.
          ids: The rows.
          gradients: Their gradients.
          rate: The learning rate.
        """
        gradients = jnp.where(jnp.isfinite(gradients), gradients, 0)
        value, state = apply(self.values[name], self.states.get(name), ids, gradients, rate)
        states = self.states if state is None else {**self.states, name: state}
        return Tables({**self.values, name: value}, states)


@dataclasses.dataclass(frozen=True)
class Updated:
    """The result of the updates of a step.

    Attributes:
      tables: The tables after them.
      metrics: Metric -> (sum, weight), with `loss`.
    """

    tables: Tables
    metrics: Mapping[str, tuple[Scalar, Scalar]]


class RowObjective(Objective):
    """An objective that makes the updates of a step by itself. `read` is its loss at evaluation."""

    draws = True
    updates_rows = True

    def update(self, tables: Tables, rows: Batch, apply: Apply, *, rate: Scalar, key: jax.Array) -> Updated:
        """Makes the updates of a step.

        Args:
          tables: All trainable parameters by name, such as `model/token_embedder/embedding`.
          rows: The global batch.
          apply: Updates rows; see `optimizers.rows.RowOptimizer`.
          rate: The learning rate.
          key: Random key of the step. The result depends neither on devices nor on processes.
        """
        raise NotImplementedError
