"""Early stopping: evaluations are counted since the best one."""

import math

import pytest

from t5x_like.errors import UserError
from t5x_like.metrics.best import BestMetric
from t5x_like.training.early_stopping import EarlyStopping


def test_patience_counts_evaluations_since_the_best():
    stopping = EarlyStopping(BestMetric("accuracy"), 2, [(10, 0.5), (20, 0.7)])
    stopping.add(30, 0.7)  # not an improvement
    assert not stopping.is_exhausted
    stopping.add(40, math.nan)
    assert stopping.is_exhausted
    assert stopping.reason() == "accuracy has not improved in 2 evaluations since step 20 (0.7)"
    assert not EarlyStopping(BestMetric("accuracy"), None, [(10, 0.5), (20, 0.1)]).is_exhausted
    with pytest.raises(UserError, match="PATIENCE=0 is not positive"):
        EarlyStopping(BestMetric(), 0)
