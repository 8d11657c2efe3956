"""The span-boundary objective, with the masked language model."""

from objective_case import Case

from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.span_boundary import SpanBoundary

CASES = {
    "span_boundary": Case(Joint([MaskedLM(), SpanBoundary(max_targets=2, position_dim=3)]), "bert"),
}
