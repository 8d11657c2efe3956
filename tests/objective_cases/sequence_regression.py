"""Regression of rows."""

import numpy as np
from objective_case import LABELS, ROWS, Case

from t5x_like.objectives import heads
from t5x_like.objectives.sequence_regression import SequenceRegression

CASES = {
    "regression": Case(
        SequenceRegression(head=heads.DecoderLastToken(bos_id=2)),
        "bart",
        lambda rng: rng.uniform(-1, 5, (ROWS, 1)).astype(np.float32),
    ),
    "regression of several scores": Case(
        SequenceRegression(labels=LABELS, head=heads.PooledFirstToken()),
        "bert",
        lambda rng: rng.uniform(-1, 5, (ROWS, 3)).astype(np.float32),
    ),
}
