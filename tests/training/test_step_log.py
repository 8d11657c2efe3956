"""Which checkpoint a diverged run resumes from, and which one it deletes, without a run."""

import types

import numpy as np
import pytest

from t5x_like.metrics import Throughput
from t5x_like.training.recipe import Periods
from t5x_like.training.step_log import StepLog, TrainingFailed, newest_healthy


class Checkpoints:
    """Checkpoints of some steps, which only remember what is deleted."""

    def __init__(self, *steps):
        self.saved, self.deleted = list(steps), []

    def wait(self):
        pass

    def steps(self):
        return self.saved

    def delete(self, step):
        self.deleted.append(step)


@pytest.mark.parametrize(
    ("steps", "last_finite", "expected"), [((), 3, None), ((2,), 5, 2), ((2, 4), 4, 2), ((4,), 4, None), ((2, 4), 9, 4)]
)
def test_a_healthy_checkpoint_is_followed_by_a_finite_step(steps, last_finite, expected):
    assert newest_healthy(steps, last_finite) == expected


@pytest.mark.parametrize(
    ("steps", "deleted", "message"),
    [
        ((2, 4), [4], "the last healthy checkpoint is 2"),
        ((2, 3), [], "the last healthy checkpoint is 3"),
        ((4,), [], "the only checkpoint is 4, and no finite step has followed it"),
        ((), [], "no checkpoint has been saved yet"),
    ],
)
def test_diverged_run_deletes_only_a_checkpoint_that_would_diverge_again(steps, deleted, message):
    checkpoints, idle = Checkpoints(*steps), types.SimpleNamespace(metrics=lambda step: {}, wait_seconds=0.0)
    log = StepLog(Periods(9, stop_after_skipped=3), reports=None, clock=None, feed=idle, checkpointer=checkpoints)
    with pytest.raises(TrainingFailed, match=f"for 3 steps in a row, up to step 7.*{message}"):
        log.add(7, {"skipped_in_a_row": (3.0, 1.0), "param_norm": (1.0, 1.0)}, measured=False)
    assert checkpoints.deleted == deleted


@pytest.mark.parametrize(("platform", "logged"), [("cpu", [1, 2, 3]), ("tpu", [0, 1, 2])])
def test_step_of_a_cpu_is_measured_before_the_next_one_is_computed(platform, logged):
    now, rows = [0.0], []
    clock = Throughput(None, [], now=lambda: now[0])
    reports = types.SimpleNamespace(step=lambda step, row: rows.append(row["seconds_per_step"]))
    feed = types.SimpleNamespace(metrics=lambda step: {}, wait_seconds=0.0)
    log = StepLog(Periods(9, log=1), reports, clock, feed, Checkpoints(), platform=platform)
    clock.start(0.0)
    for step, (norm, number) in enumerate(zip((1.0, 1.0, np.nan), logged, strict=True), start=1):
        now[0] += 2.0
        pairs = {"tokens": (8.0, 1.0), "skipped_in_a_row": (0.0, 1.0), "param_norm": (norm, 1.0)}
        log.add(step, pairs, measured=True)
        assert len(rows) == number
    assert not log.flush() and not log.flush()  # the last step is not finite, whether or not it is pending
    assert len(rows) == 3 and (platform != "cpu" or rows == [2.0, 2.0, 2.0])
