"""A process that delays most steps of a run is named in a warning."""

import types

import numpy as np
import pytest

from t5x_like.runtime import slow_host

pytestmark = [pytest.mark.full, pytest.mark.notf]

HOSTS = ["host-a", "host-b", "host-c"]


def maxima(*seconds):
    """Returns what the vote of the processes with these seconds results in."""
    return np.max([slow_host.encode(process, value) for process, value in enumerate(seconds)], axis=0)


def warnings(caplog, votes, step_seconds):
    """Returns the warnings after steps of that length."""
    clock = types.SimpleNamespace(time=0.0)
    judge = slow_host.SlowHost(HOSTS, now=lambda: clock.time)
    for vote in votes:
        clock.time += step_seconds
        judge.add(vote)
    return [line for line in caplog.messages if "is slow" in line]


def test_slowest_process_and_seconds_survive_the_vote():
    assert slow_host.decode(maxima(0.25, 1.5, 0.5)) == (1, 1.5, 0.25)
    process, slowest, fastest = slow_host.decode(maxima(1e9, 0.0))
    assert (process, fastest) == (0, 0.0) and slowest > 100


def test_process_with_slow_input_is_named_once(caplog):
    votes = [maxima(0.02, 0.03, 0.4 + 0.01 * (step % 3)) for step in range(400)]
    (line,) = warnings(caplog, votes, step_seconds=0.5)
    assert line.startswith("process 2 on host host-c is slow: it takes 0.410 s per step by itself")
    assert "the fastest process 0.020 s, and a step 0.5" in line


def test_short_delays_single_pauses_and_changing_processes_are_not_reported(caplog):
    short = [maxima(0.02, 0.03, 0.06) for _ in range(400)]
    pauses = [maxima(0.02, 30.0 if step % 25 == 0 else 0.03, 0.02) for step in range(400)]
    changing = [maxima(*np.roll([0.02, 0.02, 0.4], step)) for step in range(400)]
    for votes in (short, pauses, changing):
        assert warnings(caplog, votes, step_seconds=0.5) == []
