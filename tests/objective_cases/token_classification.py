"""Classification of tokens."""

from objective_case import LABELS, LENGTH, ROWS, Case

from t5x_like.objectives import heads
from t5x_like.objectives.token_classification import TokenClassification

CASES = {
    "tagging": Case(
        TokenClassification(LABELS, head=heads.EachToken()), "bert", lambda rng: rng.integers(-1, 3, (ROWS, LENGTH))
    ),
}
