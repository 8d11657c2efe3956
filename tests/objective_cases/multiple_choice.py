"""Multiple choice."""

from objective_case import ROWS, Case

from t5x_like.objectives import heads
from t5x_like.objectives.multiple_choice import MultipleChoice

CASES = {
    "multiple choice": Case(
        MultipleChoice(3, head=heads.PooledFirstToken()),
        "bert",
        lambda rng: rng.integers(-1, 3, (ROWS, 1)),
        "key/bias|classifier/bias",
    ),
}
