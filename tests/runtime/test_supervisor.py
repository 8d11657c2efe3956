"""`--max_restarts`: what is started again, how often, after which pause, and what is said of it."""

import json
import os
import signal
import subprocess
import sys
import time
import types

import pytest

from t5x_like import cli
from t5x_like.runtime import supervisor

pytestmark = pytest.mark.notf

# Ends each start with the next of the codes in a file; a negative one is a signal to itself.
CHILD = """
import os, pathlib, signal, sys, time
plan = pathlib.Path(sys.argv[1])
codes = plan.read_text().split()
plan.write_text(' '.join(codes[1:]))
with open(sys.argv[1] + '.times', 'a') as times:
    times.write(f"{time.monotonic()} {os.environ.get('T5X_LIKE_SUPERVISED')}\\n")
code = int(codes[0])
if code < 0:
    os.kill(os.getpid(), -code)
if code == 1000:  # saves and leaves when it is asked
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    pathlib.Path(sys.argv[1] + '.ready').write_text('')
    time.sleep(60)
sys.exit(code)
"""
PAUSE = 0.1


def supervise(folder, codes, most=3, **options):
    plan = folder / "plan"
    plan.write_text(codes)
    command = [sys.executable, "-c", CHILD, str(plan)]
    code = supervisor.Supervisor(command, most, first_pause=PAUSE, **options).run()
    starts = [line.split() for line in (folder / "plan.times").read_text().splitlines()]
    assert {supervised for _, supervised in starts} == {"1"}
    return code, [float(moment) for moment, _ in starts]


@pytest.mark.parametrize(
    "codes, expected, starts",
    [
        ("0", 0, 1),
        ("2", 2, 1),  # a mistake would be repeated
        ("1 -9 134 0", 0, 4),
        ("1 1 1 1 0", 1, 4),  # the fourth is one too many
        ("-9 -9 -9 -9", 137, 4),
        ("75 75 75 75 0", 0, 5),  # preemptions are not counted
    ],
)
def test_crashes_are_started_again_so_many_times(tmp_path, codes, expected, starts):
    code, moments = supervise(tmp_path, codes)
    assert (code, len(moments)) == (expected, starts)


@pytest.mark.parametrize("codes", ["1 1 1 0", "75 75 75 0"])
def test_pauses_grow(tmp_path, codes):
    _, moments = supervise(tmp_path, codes)
    pauses = [later - earlier for earlier, later in zip(moments, moments[1:], strict=False)]
    assert all(pause >= PAUSE * 2**number for number, pause in enumerate(pauses))


def test_a_run_that_has_lasted_is_started_again_soon(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "SHORT_RUN_SECONDS", 0.0)
    waits = []
    asked = types.SimpleNamespace(wait=waits.append, is_set=lambda: False)
    monkeypatch.setattr(supervisor, "threading", types.SimpleNamespace(Event=lambda: asked))
    with caplog.at_level("WARNING", logger="absl"):
        supervise(tmp_path, "75 75 75 0")
    assert waits == [PAUSE] * 3
    assert "it was preempted after 0 s; starting again in" in caplog.messages[0]


def test_it_says_why_each_time(tmp_path, caplog):
    (tmp_path / "status.json").write_text(json.dumps({"state": "failed", "reason": "TrainingFailed: no good"}))
    with caplog.at_level("WARNING", logger="absl"):
        supervise(tmp_path, "-9 1 1", most=1, model_dir=str(tmp_path))
    assert "ended by SIGKILL, often for want of memory" in caplog.messages[0]
    assert "restart 1 of 1" in caplog.messages[0]
    assert "exit code 1 after" in caplog.messages[1] and "(TrainingFailed: no good)" in caplog.messages[1]
    assert "giving up after 1 restarts" in caplog.messages[1]


def test_a_request_to_stop_is_passed_on_and_ends_the_supervision(tmp_path):
    plan = tmp_path / "plan"
    plan.write_text("1000 0")
    code = (
        "import sys; from t5x_like.runtime import supervisor;"
        "sys.exit(supervisor.Supervisor([sys.executable, '-c', sys.argv[1], sys.argv[2]], 3).run())"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, CHILD, str(plan)], env=environment)
    deadline = time.monotonic() + 60
    while not (tmp_path / "plan.ready").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    assert plan.read_text() == "0"


def test_the_command_line_is_started_again_without_the_flag(monkeypatch):
    asked = []
    monkeypatch.setattr(supervisor, "run_with_restarts", lambda *given: asked.append(given) or 0)
    line = ["train", "--max_restarts", "5", "--gin.MODEL_DIR=gs://bucket/run", "--gin.TRAIN_STEPS=3"]
    assert cli.main(line) == 0
    assert asked == [(["train", "--gin.MODEL_DIR=gs://bucket/run", "--gin.TRAIN_STEPS=3"], 5, "gs://bucket/run")]


@pytest.mark.parametrize(
    "line, message",
    [
        (
            "train --max_restarts=2",
            "--max_restarts: MODEL_DIR is missing, so each restart would begin a new run. Give --gin.MODEL_DIR",
        ),
        ("train --max_restarts=often", "--max_restarts=often: must be a non-negative integer"),
        ("eval --max_restarts=2", "eval: unknown flag --max_restarts"),
        ("train --profile_steps=9:3", "--profile_steps=9:3: not a range of steps. Give the first and the last step"),
        ("inspect --num_processes=2", "inspect: unknown flag --num_processes"),
    ],
)
def test_what_makes_no_sense_is_refused(line, message, capsys):
    assert cli.main(line.split()) == 2
    assert message in capsys.readouterr().err
