"""Requests to stop: signals, and the notice of a cloud that is played by a server here."""

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
    """A metadata server whose answers a test sets, by the last part of the address."""
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
def test_a_signal_is_a_request_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        stop.defer()
        assert stop.agreed(stop.vote()) is None
        os.kill(os.getpid(), number)
        assert stop.agreed(stop.vote()) == signal.Signals(number).name
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", stop_signals.SIGNALS)
def test_before_there_is_anything_to_save_a_signal_raises(number):
    with pytest.raises(stop_signals.Stopped, match=f"stopped by {signal.Signals(number).name}"), StopRequest():
        os.kill(os.getpid(), number)
        time.sleep(5)


def test_a_signal_that_a_library_swallows_still_counts():
    with StopRequest() as stop:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        stop.defer()
        assert stop.agreed(stop.vote()) == "SIGINT"


def test_a_signal_that_an_import_swallows_stops_the_start():
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
def test_the_notice_of_the_cloud_is_a_request(metadata, key, harmless, notice):
    metadata[key] = harmless
    with StopRequest() as stop:
        assert not wait_for(lambda: stop.requested, seconds=0.3)
        metadata[key] = notice
        assert wait_for(lambda: stop.requested) == f"{key}={notice}"


def test_a_notice_that_stands_already_is_no_new_request(metadata, caplog):
    metadata["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    with caplog.at_level("WARNING", logger="absl"), StopRequest() as stop:
        assert wait_for(lambda: "the run goes on until" in caplog.text)
        assert not wait_for(lambda: stop.requested, seconds=0.3)
        assert caplog.text.count("the run goes on until") == 1
        metadata["preempted"] = "TRUE"  # another notice counts
        assert wait_for(lambda: stop.requested) == "preempted=TRUE"


def test_a_notice_that_comes_anew_is_a_request(metadata):
    metadata["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    with StopRequest() as stop:
        assert not wait_for(lambda: stop.requested, seconds=0.3)
        metadata["maintenance-event"] = "NONE"
        assert not wait_for(lambda: stop.requested, seconds=0.3)
        metadata["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
        assert wait_for(lambda: stop.requested) == "maintenance-event=TERMINATE_ON_HOST_MAINTENANCE"


def test_a_machine_that_cannot_be_asked_is_told_of_once(monkeypatch, caplog):
    monkeypatch.setenv(preemption.METADATA_HOST, "127.0.0.1:1")
    monkeypatch.setattr(preemption, "_POLL_SECONDS", 0.05)
    with caplog.at_level("WARNING", logger="absl"), StopRequest() as stop:
        assert wait_for(lambda: caplog.messages)
        assert not wait_for(lambda: stop.requested, seconds=0.3)
    assert len([line for line in caplog.messages if "metadata server does not say" in line]) == 1
