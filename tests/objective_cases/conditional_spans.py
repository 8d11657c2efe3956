"""Spans as answers, whose end depends on their start."""

from objective_case import ROWS, Case

from t5x_like.objectives.conditional_spans import ConditionalSpanExtraction
from t5x_like.objectives.heads.question_heads import ElectraQuestion

CASES = {
    "conditional_spans": Case(
        ConditionalSpanExtraction(head=ElectraQuestion(hidden_dim=8)),
        "bert",
        lambda rng: rng.integers(-1, 9, (ROWS, 2)),
        "key/bias|/start/bias|/end/score/bias",
    ),
}
