"""The evaluation step: the metrics of a batch, without an update."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Array, Float, Int

from t5x_like.objectives import passes
from t5x_like.objectives.base import Objective
from t5x_like.objectives.carry import as_features

Scalar = Float[Array, ""]


def make_eval_step(objective: Objective) -> Callable[..., tuple[dict[str, tuple[Scalar, Scalar]], dict[str, Array]]]:
    """Creates `eval_step(params, batch, number, carry) -> ({metric: (sum, weight)}, carry)`, without dropout.

    Args:
      objective: The objective whose metrics are computed. What it draws for an example depends on the number of the
        example, which follows from the number of the batch, from 0. `carry` has what its networks carry from the batch
        before, as features of a batch.
    """

    def eval_step(params: Any, batch: Mapping[str, Array], number: Int[Array, ""], carry: Mapping[str, Array]):
        first = number * passes.count_rows(batch)
        outputs = passes.forward_at_evaluation(objective, params, {**batch, **carry}, first=first)
        return passes.terms(outputs).metrics, as_features(outputs.carry)

    return eval_step
