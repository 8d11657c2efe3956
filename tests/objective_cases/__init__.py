"""Every objective with a small model and a batch, for the properties that all objectives must have.

Test modules use `from objective_cases import CASES`. A new objective adds a module to this folder that defines `CASES`,
name -> `Case`.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from objective_case import Case

from t5x_like.kernels.chunks import Readout, sum_over_positions
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Objective, Pass
from t5x_like.objectives.keys import Keys
from t5x_like.objectives.passes import Terms, forward, forward_at_evaluation, terms

_MODULES = [
    importlib.import_module(f"{__name__}.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("*.py"))
    if path.stem != "__init__"
]
CASES: dict[str, Case] = {name: case for module in _MODULES for name, case in module.CASES.items()}


def terms_of(
    objective: Objective, params: Mapping[str, Any], batch: Mapping[str, Any], keys: Keys | None = None
) -> Terms:
    """Returns the terms of a batch, whose sums have gradients. Without keys, the objective is evaluated."""
    if keys is None:
        return _differentiable(forward_at_evaluation(objective, params, batch))
    return _differentiable(forward(objective, params, batch, keys=keys))


def read_terms(objective: Objective, params: Mapping[str, Any], outputs: Outputs, rows: Mapping[str, Any]) -> Terms:
    """Returns the terms of given outputs of a model, whose sums have gradients."""
    return _differentiable(objective.read(params, outputs, rows))


def _differentiable(found: Pass) -> Terms:
    """Returns the terms, each loss of logits summed by itself instead of in one pass."""
    sums = dict(found.sums)
    for prediction in found.predictions.values():
        readout = Readout(prediction.hidden, prediction.logits)
        for each in prediction.losses:
            value = each.factor * each.loss.trained(sum_over_positions(readout, each.loss))
            sums[each.term] = sums.get(each.term, 0.0) + value
    return Terms(sums, terms(found).metrics)
