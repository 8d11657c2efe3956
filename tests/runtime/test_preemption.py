"""Requests to stop: signals, and preemption notices of a fake metadata server."""

import contextlib
import http.server
import os
import signal
import threading
import time

import pytest

from t5x_like.runtime import preemption, stop_signals
from t5x_like.runtime.preemption import StopRequest

pytestmark = pytest.mark.notf


@pytest.fixture
def metadata(monkeypatch):
    """Starts a fake metadata server and returns its answers by key; a test may change them."""
    answers = {"preempted": "FALSE", "maintenance-event": "NONE"}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[self.path.rpartition("/")[2]].encode())

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(preemption.METADATA_HOST, f"127.0.0.1:{server.server_port}")
    monkeypatch.setattr(preemption, "_POLL_SECONDS", 0.05)
    yield answers
    server.shutdown()
    server.server_close()


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("number", stop_signals.SIGNALS)
def test_signal_requests_a_stop_and_handlers_are_restored(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        stop.defer()
        assert stop.agreed(stop.vote(0.0)) == (None, False)
        assert stop.agreed(stop.vote(0.0, save=True)) == (None, True)
        os.kill(os.getpid(), number)
        assert stop.agreed(stop.vote(0.0, save=True)) == (signal.Signals(number).name, False)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", stop_signals.SIGNALS)
def test_signal_before_defer_raises(number):
    with pytest.raises(stop_signals.Stopped, match=f"stopped by {signal.Signals(number).name}"), StopRequest():
        os.kill(os.getpid(), number)
        time.sleep(5)


def test_suppressed_signal_still_requests_a_stop():
    with StopRequest() as stop:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        stop.defer()
        assert stop.agreed(stop.vote(0.0)).stopped_by == "SIGINT"


def test_signal_suppressed_by_an_import_raises_at_the_start():
    with stop_signals.watched():
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        with pytest.raises(stop_signals.Stopped, match="stopped by SIGINT"), StopRequest():
            pass


@pytest.mark.parametrize(
    "key, harmless, notice",
    [
        ("preempted", "FALSE", "TRUE"),
        ("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"),
    ],
)
def test_preemption_notice_requests_a_stop(metadata, key, harmless, notice):
    metadata[key] = harmless
    with StopRequest() as stop:
        assert not wait_for(lambda: stop.requested, seconds=0.3)
        metadata[key] = notice
        assert wait_for(lambda: stop.requested) == f"{key}={notice}"


def test_notice_from_before_the_start_requests_no_stop(metadata, caplog):
    metadata["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    with caplog.at_level("WARNING", logger="absl"), StopRequest() as stop:
        assert wait_for(lambda: "run continues until" in caplog.text)
        assert not wait_for(lambda: stop.requested, seconds=0.3)
        assert caplog.text.count("run continues until") == 1
        metadata["preempted"] = "TRUE"  # another notice counts
        assert wait_for(lambda: stop.requested) == "preempted=TRUE"


def test_repeated_notice_requests_a_stop(metadata):
    metadata["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    with StopRequest() as stop:
        assert not wait_for(lambda: stop.requested, seconds=0.3)
        metadata["maintenance-event"] = "NONE"
        assert not wait_for(lambda: stop.requested, seconds=0.3)
        metadata["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
        assert wait_for(lambda: stop.requested) == "maintenance-event=TERMINATE_ON_HOST_MAINTENANCE"


def test_unreachable_metadata_server_is_logged_once(monkeypatch, caplog):
    monkeypatch.setenv(preemption.METADATA_HOST, "127.0.0.1:1")
    monkeypatch.setattr(preemption, "_POLL_SECONDS", 0.05)
    with caplog.at_level("WARNING", logger="absl"), StopRequest() as stop:
        assert wait_for(lambda: caplog.messages)
        assert not wait_for(lambda: stop.requested, seconds=0.3)
    assert len([line for line in caplog.messages if "metadata server cannot be read" in line]) == 1
