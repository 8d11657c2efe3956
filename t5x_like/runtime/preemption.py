"""Requests to stop a run, by a signal or a preemption notice, or to save it; all processes agree on them."""

import contextlib
import os
import pathlib
import socket
import threading
import urllib.request
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_like.runtime import distributed, slow_host, stop_signals

# Keys of the metadata server of Google Cloud machines, and the values that announce the end of the machine.
# https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys
METADATA_HOST = "GCE_METADATA_HOST"
_NOTICES = {"preempted": "TRUE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}
_PRODUCT = pathlib.Path("/sys/class/dmi/id/product_name")
_POLL_SECONDS = 5.0
# What a process asks for, of which the largest counts. A run that stops is saved.
_NOTHING, _SAVE, _STOP = range(3)


class Agreement(NamedTuple):
    """What all processes do after a step.

    Attributes:
      stopped_by: The reason to stop, or None.
      saves: Whether a process has asked for a checkpoint.
    """

    stopped_by: str | None
    saves: bool


class StopRequest:
    """Records requests to stop, so that the training loop can save and exit after a step.

    Use it as a context manager around the setup and the loop. Until `defer` is called, a signal raises
    `stop_signals.Stopped`, because there is nothing to save. Afterwards call in each step

        vote = stop.vote(seconds, save=…)    # before the step starts
        …
        agreement = stop.agreed(vote)        # with the vote of an earlier step

    In a run of several processes, each process votes in each step whether it was asked to stop, or asks for a
    checkpoint. All processes read the same result of the vote, so all stop or save after the same step. The votes also
    compare the seconds that each process takes by itself, and a slow host is named in a warning (see `slow_host`).

    A second Ctrl-C ends the process immediately. Outside the main thread signals cannot be handled, and only preemption
    notices count.
    """

    def __init__(self):
        self._noticed: str | None = None
        self._stack = contextlib.ExitStack()
        self._notice: _CloudNotice | None = None
        self._votes = _Votes() if jax.process_count() > 1 else None

    def __enter__(self) -> "StopRequest":
        self._signals = self._stack.enter_context(stop_signals.watched())
        self._signals.check()
        if METADATA_HOST in os.environ or _on_google_machine():
            self._notice = _CloudNotice(self.request)
        return self

    def __exit__(self, *exception) -> None:
        self._signals.undefer()
        self._stack.close()
        if self._notice:
            self._notice.close()

    @property
    def requested(self) -> str | None:
        """The signal, notice or other reason for a stop, or None."""
        return self._signals.requested or self._noticed

    def request(self, reason: str) -> None:
        """Requests a stop for another reason than a signal."""
        self._noticed = reason

    def defer(self) -> None:
        """Records signals from now on without raising `Stopped`, because there is progress to save."""
        self._signals.defer()

    def vote(self, host_seconds: float, *, save: bool = False) -> jax.Array | int:
        """Starts the vote of a step.

        Args:
          host_seconds: How long this process has taken for the step before, without waiting for devices.
          save: Whether this process asks for a checkpoint.

        Returns:
          The pending result.
        """
        request = _STOP if self.requested is not None else _SAVE if save else _NOTHING
        return self._votes.start(request, host_seconds) if self._votes else request

    def agreed(self, vote: jax.Array | int | None) -> Agreement:
        """Returns what to do now.

        Args:
          vote: The result of `vote` in an earlier step; None before the second step. A run of one process stops
            without it.
        """
        request = _NOTHING if vote is None else self._votes.count(vote) if self._votes else vote
        if self._votes is None:
            return Agreement(self.requested, request == _SAVE)
        return Agreement(self.requested or "another process" if request == _STOP else None, request == _SAVE)


class _Votes:
    """A collective over all devices for each step. It does not block.

    Its result is int32 `[3]`, maxima over all processes: their requests, and `slow_host.encode`.
    """

    def __init__(self):
        devices = np.array(jax.devices())
        mesh = Mesh(devices, ("all",))
        self._split, self._shape = NamedSharding(mesh, PartitionSpec("all")), (len(devices), 3)
        self._max = jax.jit(lambda votes: votes.max(0), out_shardings=NamedSharding(mesh, PartitionSpec()))
        self._slow_host: slow_host.SlowHost | None = None

    def start(self, request: int, host_seconds: float) -> jax.Array:
        vote = np.array([request, *slow_host.encode(jax.process_index(), host_seconds)], np.int32)
        mine = np.tile(vote, (jax.local_device_count(), 1))
        return self._max(jax.make_array_from_process_local_data(self._split, mine, self._shape))

    def count(self, result: jax.Array) -> int:
        """Waits for a result, and returns the largest request."""
        if self._slow_host is None:
            self._slow_host = slow_host.SlowHost(distributed.compute_everywhere(socket.gethostname))
        request, *maxima = np.asarray(result)
        self._slow_host.add(maxima)
        return int(request)


class _CloudNotice:
    """A thread that polls the metadata server for a preemption or maintenance notice.

    Only a new notice requests a stop. A notice that is present at the first poll has already stopped an earlier start
    of the run: maintenance is announced an hour ahead, and the machine can be used until then.
    """

    def __init__(self, request_stop: Callable[[str], None]):
        self._request_stop, self._seconds, self._ended = request_stop, _POLL_SECONDS, threading.Event()
        self._failed = False
        # No proxy, because a proxy on another machine would return the metadata of that machine.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        threading.Thread(target=self._run, name="cloud notice", daemon=True).start()

    def close(self) -> None:
        """Ends the thread after the current poll."""
        self._ended.set()

    def _run(self) -> None:
        last: dict[str, str] = {}
        while not self._ended.is_set():
            for key, notice in _NOTICES.items():
                value = self._read(key)
                if value == notice and last.get(key, notice) != notice:
                    logging.warning(
                        "this machine is about to be preempted or maintained (%s is %s): saving", key, notice
                    )
                    self._request_stop(f"{key}={notice}")
                    return
                if value == notice and key not in last:
                    logging.warning(
                        "the preemption or maintenance of this machine was announced before this start (%s is %s): the "
                        "run continues until a new notice or SIGTERM",
                        *(key, notice),
                    )
                if value is not None:
                    last[key] = value
            self._ended.wait(self._seconds)

    def _read(self, key: str) -> str | None:
        host = os.environ.get(METADATA_HOST, "metadata.google.internal")
        request = urllib.request.Request(
            f"http://{host}/computeMetadata/v1/instance/{key}", headers={"Metadata-Flavor": "Google"}
        )
        try:
            with self._open(request, timeout=self._seconds) as response:
                return response.read().decode().strip()
        except OSError as error:
            if not self._failed:  # the machine still receives SIGTERM
                logging.warning("the metadata server cannot be read, so preemption notices are not detected: %s", error)
            self._failed = True
            return None


def _on_google_machine() -> bool:
    try:
        return "Google" in _PRODUCT.read_text()
    except OSError:
        return False
