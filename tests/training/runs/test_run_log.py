"""The log of a run as a file."""

import contextlib
import errno
import logging
import os
import threading
import uuid

import pytest
from absl import logging as absl_logging

from t5x_like import own_files, paths
from t5x_like.errors import UserError
from t5x_like.training.runs import run_log
from t5x_like.training.runs.run_log import RunLog


@pytest.fixture(params=["local", "store"])
def model_dir(request, tmp_path):
    return str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}/run"


@contextlib.contextmanager
def logged(model_dir, command, enabled=True):
    with RunLog(enabled=enabled) as log:
        absl_logging.warning("before %s", command)
        with log.open(model_dir, command):
            yield


def lines(model_dir):
    """Returns the lines without their times."""
    return [line.partition(" ")[2].partition(" ")[2] for line in paths.read_text(f"{model_dir}/log.txt").splitlines()]


def test_each_start_adds_its_lines(model_dir):
    for command in ("first", "second"):
        with logged(model_dir, command):
            absl_logging.error("in %s", command)
        absl_logging.error("after %s", command)
    assert lines(model_dir) == [
        *("I command line: first", "W before first", "E in first"),
        *("I command line: second", "W before second", "E in second"),
    ]
    assert not any(isinstance(handler, RunLog) for handler in logging.getLogger().handlers)


def test_log_ends_with_the_error_of_the_run(model_dir):
    with pytest.raises(UserError), logged(model_dir, "first"):
        raise UserError("MODEL_DIR=100%s: no")
    with pytest.raises(ZeroDivisionError), logged(model_dir, "second"):
        print(1 // 0)
    text = paths.read_text(f"{model_dir}/log.txt")
    assert "E UserError: MODEL_DIR=100%s: no\n" in text and text.count("Traceback") == 1
    assert "E ZeroDivisionError: integer division or modulo by zero\nTraceback" in text


def test_other_processes_write_no_log(model_dir):
    with logged(model_dir, "first", enabled=False):
        absl_logging.warning("in first")
    assert not paths.exists(f"{model_dir}/log.txt")


def test_unwritable_log_does_not_end_the_run(tmp_path, caplog, monkeypatch):
    def fill(file, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(own_files, "write", fill)
    with logged(str(tmp_path), "first"):
        absl_logging.warning("in first")
    assert caplog.messages.count("in first") == 1
    assert [message for message in caplog.messages if "log.txt cannot be written" in message] == [
        f"{tmp_path}/log.txt cannot be written: [Errno 28] No space left on device. The run continues without it"
    ]


def test_slow_store_delays_no_line_and_is_tried_again(monkeypatch, caplog):
    model_dir = f"memory://{uuid.uuid4().hex}/run"
    monkeypatch.setattr(run_log, "_FIRST_SECONDS", 0.01)
    answer, failed, write = threading.Event(), threading.Event(), paths.write_atomic

    def upload(path, text):
        answer.wait()
        if not failed.is_set():
            # As clients do, the store logs in another thread, which the uploading thread waits for.
            thread = threading.Thread(target=absl_logging.warning, args=("no answer",))
            thread.start()
            thread.join()
            failed.set()
            raise OSError("no network")
        write(path, text)

    monkeypatch.setattr(paths, "write_atomic", upload)
    with logged(model_dir, "first"):
        absl_logging.warning("in first")
        answer.set()
        assert failed.wait(10)
    assert lines(model_dir)[:4] == ["I command line: first", "W before first", "W in first", "W no answer"]
    assert any(
        "log.txt cannot be uploaded: no network. The next upload includes its lines" in message
        for message in caplog.messages
    )


def test_link_to_another_file_is_not_followed(tmp_path, caplog):
    """The directory of a run may belong to somebody else, who plants the link."""
    other = tmp_path / "other"
    other.write_text("of the user")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").symlink_to(other)
    with logged(str(tmp_path / "run"), "first"):
        absl_logging.error("in the run")
    assert other.read_text() == "of the user"
    assert "log.txt cannot be written" in caplog.text
