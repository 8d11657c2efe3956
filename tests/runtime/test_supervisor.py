"""The supervisor of `--max_restarts`: restarts, their number, pauses, and log lines."""

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

# Each start exits with the next code in a file; a negative code is a signal that the process sends to itself.
CHILD = """
import os, pathlib, signal, sys, time
plan = pathlib.Path(sys.argv[1])
codes = plan.read_text().split()
plan.write_text(' '.join(codes[1:]))
with open(sys.argv[1] + '.times', 'a') as times:
    times.write(f"{time.monotonic()} {os.environ.get('T5X_LIKE_SUPERVISED')}\\n")
code, *effects = codes[0].split('/')
code, run = int(code), plan.parent
for effect in effects:
    kind, step = effect.split('=')
    if kind == 'save':
        (run / 'checkpoints' / step).mkdir(parents=True)
    else:
        (run / 'status.json').write_text('{"state": "failed", "step": %s}' % step)
if code < 0:
    os.kill(os.getpid(), -code)
if code == 1000:  # saves and exits on SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    pathlib.Path(sys.argv[1] + '.ready').write_text('')
    time.sleep(60)
sys.exit(code)
"""
PAUSE = 0.03


def supervise(directory, codes, max_restarts=3, **options):
    plan = directory / "plan"
    plan.write_text(codes)
    command = [sys.executable, "-c", CHILD, str(plan)]
    code = supervisor.Supervisor(command, max_restarts, model_dir=str(directory), first_pause=PAUSE, **options).run()
    starts = [line.split() for line in (directory / "plan.times").read_text().splitlines()]
    assert {supervised for _, supervised in starts} == {"1"}
    return code, [float(moment) for moment, _ in starts]


@pytest.mark.parametrize(
    "codes, expected, starts",
    [
        ("0", 0, 1),
        ("2", 2, 1),  # a user error would be repeated
        ("1 -9 134 0", 0, 4),
        ("1 1 1 1 0", 1, 4),  # the fourth crash exceeds the limit
        ("-9 -9 -9 -9", 137, 4),
        ("75 75 75 75 0", 0, 5),  # preemptions are not counted
        ("1 69 69 69 69 1 69 1 0", 0, 9),  # nor is the loss of another process
        ("137 137/save=5 137 137 137/save=9 1 1 0", 0, 8),  # a new checkpoint resets the count
        ("1 1/save=5 1 1 1 0", 1, 5),
        ("70/failed=4 70/failed=6 70/failed=8 0", 0, 4),  # each start computes new steps
        ("70/failed=4 1 70/failed=4 0", 70, 3),  # the same step fails twice
        ("70 70 0", 0, 3),  # the step is not known
    ],
)
def test_crashes_are_restarted_up_to_the_limit(tmp_path, codes, expected, starts):
    code, moments = supervise(tmp_path, codes)
    assert (code, len(moments)) == (expected, starts)


@pytest.mark.parametrize("codes", ["1 1 1 0", "75 75 75 0"])
def test_pauses_grow(tmp_path, codes):
    _, moments = supervise(tmp_path, codes)
    pauses = [later - earlier for earlier, later in zip(moments, moments[1:], strict=False)]
    assert all(pause >= PAUSE * 2**number for number, pause in enumerate(pauses))


def test_pause_after_a_long_run_is_short(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "SHORT_RUN_SECONDS", 0.0)
    waits = []
    requested = types.SimpleNamespace(wait=waits.append, is_set=lambda: False)
    monkeypatch.setattr(supervisor, "threading", types.SimpleNamespace(Event=lambda: requested))
    with caplog.at_level("WARNING", logger="absl"):
        supervise(tmp_path, "75 75 75 0")
    assert waits == [PAUSE] * 3
    assert "it was preempted after 0 s; restarting in" in caplog.messages[0]


def test_reason_of_each_restart_is_logged(tmp_path, caplog):
    (tmp_path / "status.json").write_text(json.dumps({"state": "failed", "reason": "TrainingFailed: no good"}))
    with caplog.at_level("WARNING", logger="absl"):
        supervise(tmp_path, "-9 1 1", max_restarts=1)
    assert "ended by SIGKILL, often because of exhausted memory" in caplog.messages[0]
    assert "restart 1 of 1" in caplog.messages[0]
    assert "exit code 1 after" in caplog.messages[1] and "(TrainingFailed: no good)" in caplog.messages[1]
    assert "maximum restarts (1) without a new checkpoint reached" in caplog.messages[1]


def test_stop_request_is_forwarded_and_ends_the_supervision(tmp_path):
    plan = tmp_path / "plan"
    plan.write_text("1000 0")
    code = (
        "import sys; from t5x_like.runtime import supervisor;"
        "sys.exit(supervisor.Supervisor([sys.executable, '-c', *sys.argv[1:]], 3, model_dir='run').run())"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code, CHILD, str(plan)], env=environment)
    deadline = time.monotonic() + 60
    while not (tmp_path / "plan.ready").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    assert plan.read_text() == "0"


def test_command_line_is_supervised_without_the_flag(monkeypatch):
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
def test_invalid_flags_exit_with_a_user_error(line, message, capsys):
    assert cli.main(line.split()) == 2
    assert message in capsys.readouterr().err
