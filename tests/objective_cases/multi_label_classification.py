"""Classification of rows with any number of labels."""

import numpy as np
from objective_case import LABELS, ROWS, Case

from t5x_like.objectives import heads
from t5x_like.objectives.multi_label_classification import MultiLabelClassification

CASES = {
    "multi-label classification": Case(
        MultiLabelClassification(LABELS, head=heads.PooledFirstToken()),
        "bert",
        lambda rng: rng.integers(-1, 2, (ROWS, 3)).astype(np.float32),
    ),
}
