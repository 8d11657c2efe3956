"""The best evaluation, and when a run has stopped improving."""

import math

import pytest

from t5x_like.errors import UserError
from t5x_like.metrics.best import BestMetric, find, flatten, larger_is_better

pytestmark = pytest.mark.notf


@pytest.mark.parametrize(
    "name, larger",
    [
        ("loss", False),
        ("matched/loss", False),
        ("next_sentence_loss", False),
        ("task/edit_distance", False),
        ("lossless/accuracy", True),
        ("glue_cola_v002/matthews_corrcoef", True),
    ],
)
def test_direction_follows_from_the_last_part_of_the_name(name, larger):
    assert larger_is_better(name) == larger


def test_metrics_of_several_evaluations_are_prefixed():
    one = {"validation": {"loss": 1.0, "mnli/accuracy": 0.5}}
    assert flatten(one) == one["validation"]
    several = {"matched": {"loss": 1.0, "mnli/accuracy": 0.5}, "sst2": {"loss": 2.0, "sst2/accuracy": 0.9}}
    flat = flatten(several)
    assert flat == {"matched/loss": 1.0, "matched/mnli/accuracy": 0.5, "sst2/loss": 2.0, "sst2/accuracy": 0.9}
    # Without its evaluation, a name means the first evaluation that has it.
    assert (find(flat, "sst2/loss"), find(flat, "loss"), find(flat, "mnli/accuracy")) == (2.0, 1.0, 0.5)
    with pytest.raises(UserError, match="BEST_METRIC='f1': no evaluation has this metric. Give one of matched/loss, "):
        BestMetric("f1").value(flat)


def test_last_component_alone_means_the_objective_or_else_the_task():
    one = flatten({"validation": {"squad/f1": 80.0, "squad/accuracy": 70.0, "accuracy": 0.6, "loss": 1.0}})
    assert (find(one, "f1"), find(one, "accuracy"), find(one, "em")) == (80.0, 0.6, None)
    task = {"mnli/f1": 3.0, "mnli/accuracy": 4.0, "accuracy": 0.5, "loss": 1.0}
    several = flatten({"mnli/validation_matched": task, "mnli/validation_mismatched": {name: 9.0 for name in task}})
    assert [find(several, name) for name in ("f1", "accuracy", "loss", "x/f1")] == [3.0, 0.5, 1.0, None]


def test_best_is_the_earliest_finite_extremum():
    values = [(1, 2.0), (2, 1.0), (3, math.nan), (4, 1.0)]
    assert BestMetric("loss").best(values) == [2, 4, 1]
    assert BestMetric("accuracy").best(values) == [1, 2, 4]
    assert BestMetric("accuracy", is_larger=False).best(values) == [2, 4, 1]
