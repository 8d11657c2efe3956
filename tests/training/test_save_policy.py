"""What follows a step: every combination of periods, times, evaluations, hosts and stops, without a run."""

import itertools
import re

import pytest

from t5x_like.checkpoints.local_checkpoints import LocalTier
from t5x_like.checkpoints.save_timer import SaveTimer
from t5x_like.errors import UserError
from t5x_like.training.recipe import Periods
from t5x_like.training.save_policy import Decision, SavePolicy


def policy(*, total=12, save=6, evaluate=4, latest=6, local=None, save_seconds=None, **settings):
    return SavePolicy(
        Periods(total, save=save, evaluate=evaluate, save_seconds=save_seconds),
        SaveTimer(save_seconds, decides=True),
        lambda: latest,
        **settings,
        local=None if local is None else LocalTier("/local", save_period=local),
    )


def test_steps_to_keep_that_are_no_list_raise():
    for given in (5, "5", [1.5]):
        with pytest.raises(UserError, match=re.escape(f"KEEP_STEPS={given!r}: not a list of steps.")):
            Periods(9, save_at=given)


def decisions(made, steps=range(1, 13), **options):
    """Returns kind of decision -> the steps at which it is taken."""
    options = {"stops": False} | options
    found = {step: made.decide(step, **options) for step in steps}
    kinds = ("evaluates", "saves", "saves_locally", "ends", "pauses")
    return {kind: [step for step, each in found.items() if getattr(each, kind)] for kind in kinds}


def test_periods_decide_and_the_last_step_is_always_saved_and_evaluated():
    found = decisions(policy(total=11, has_evaluations=True), range(1, 12))
    assert found == {
        "evaluates": [4, 8, 11],
        "saves": [6, 11],
        "saves_locally": [],
        "ends": [11],
        "pauses": [4, 6, 8, 11],
    }


def test_nothing_is_evaluated_without_evaluations():
    assert decisions(policy())["evaluates"] == []
    assert decisions(policy(evaluate=None, has_evaluations=True))["evaluates"] == []


def test_best_checkpoints_follow_evaluations():
    assert decisions(policy(has_evaluations=True, keeps_best=True))["saves"] == [4, 6, 8, 12]
    assert decisions(policy(keeps_best=True))["saves"] == [6, 12]


def test_a_run_without_checkpoints_saves_none_but_waits_for_its_last_step():
    found = decisions(policy(save=None, latest=None))
    assert (found["saves"], found["ends"], found["pauses"]) == ([], [12], [12])
    assert not policy(save=None).decide(5, stops=True).saves


def test_a_run_that_stops_is_saved_in_its_directory_alone():
    made = policy(local=2)
    assert made.decide(4, stops=False) == Decision(saves_locally=True)
    assert made.decide(4, stops=True) == Decision(saves=True, ends=True)
    assert made.decide(5, stops=True) == Decision(saves=True, ends=True)


def test_hosts_save_between_checkpoints_and_the_first_checkpoint_is_in_the_directory():
    found = decisions(policy(local=2))
    assert (found["saves_locally"], found["saves"]) == ([2, 4, 6, 8, 10], [6, 12])
    assert policy(local=2, latest=None).decide(2, stops=False) == Decision(saves=True, saves_locally=True)
    assert policy(local=2, latest=None).decide(3, stops=False) == Decision()


def test_time_decides_once_until_the_next_checkpoint():
    made = policy(save=None, save_seconds=1.0)
    assert made.decide(5, stops=False, is_due=True).saves
    made.timer.restart(5)
    assert not made.decide(6, stops=False, is_due=True).saves  # the request was made before the checkpoint
    assert made.decide(7, stops=False, is_due=True).saves


@pytest.mark.parametrize("stops", [False, True])
def test_the_loop_pauses_for_everything_that_reads_the_state(stops):
    choices = itertools.product((None, 3), (None, 4), (None, 2), (False, True), (False, True), range(1, 13))
    for save, evaluate, local, has_evaluations, keeps_best, step in choices:
        made = policy(save=save, evaluate=evaluate, local=local, has_evaluations=has_evaluations, keeps_best=keeps_best)
        found = made.decide(step, stops=stops)
        assert found.ends == (stops or step == 12)
        assert found.pauses == any((found.evaluates, found.saves, found.saves_locally, found.ends))
        assert found.writes == (found.saves or found.saves_locally)
        assert not (found.ends and found.saves_locally)
        assert not found.evaluates or has_evaluations
