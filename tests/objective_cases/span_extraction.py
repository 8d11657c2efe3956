"""Spans as answers."""

from objective_case import ROWS, Case

from t5x_like.objectives import heads
from t5x_like.objectives.bidirectional import GRUCells
from t5x_like.objectives.heads.drqa_head import DrQA
from t5x_like.objectives.span_extraction import SpanExtraction

CASES = {
    "span extraction": Case(
        SpanExtraction(head=heads.EachToken(dropout_rate=0.0)),
        "bert",
        lambda rng: rng.integers(-1, 9, (ROWS, 2)),
        "key/bias|mlp_norm/bias|classifier/bias",
    ),
    "span extraction by DrQA's reader": Case(
        SpanExtraction(head=DrQA(cells=GRUCells(), num_layers=2, size=4)),
        "bert",
        lambda rng: rng.integers(-1, 1, (ROWS, 2)),
    ),
}
