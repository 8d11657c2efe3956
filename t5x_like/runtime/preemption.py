"""Being asked to stop, by a signal or the cloud, and agreeing on it where there are several processes."""

import contextlib
import os
import pathlib
import threading
import urllib.request
from collections.abc import Callable

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t5x_like.runtime import stop_signals

# Where Google's machines learn what is about to happen to them, and what a machine answers that is about to go.
# https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys
METADATA_HOST = "GCE_METADATA_HOST"
_NOTICES = {"preempted": "TRUE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}
_PRODUCT = pathlib.Path("/sys/class/dmi/id/product_name")
_POLL_SECONDS = 5.0


class StopRequest:
    """Turns a request to stop into something that the loop can ask for, so that it can save and leave.

    Use it as a context manager around the start-up and the loop. Until `defer` is called a signal raises
    `stop_signals.Stopped`, as there is nothing to save. Then, in each step

        vote = stop.vote()               # before the step is started
        …
        reason = stop.agreed(vote)       # after an earlier step is known to be done

    One process agrees with itself at once. Of several, each puts into a step's vote whether it has been asked, and
    all read the same result, so all stop after the same step whichever of them were asked.

    A second Ctrl-C ends the process at once. Outside the main thread, where signals cannot be caught, only the cloud's
    notice counts.
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
            self._notice = _CloudNotice(self._request_stop)
        return self

    def __exit__(self, *exception) -> None:
        self._signals.undefer()
        self._stack.close()
        if self._notice:
            self._notice.close()

    @property
    def requested(self) -> str | None:
        """The signal or notice that requested a stop, or None."""
        return self._signals.requested or self._noticed

    def defer(self) -> None:
        """Only records signals from now on, because there is something to save."""
        self._signals.defer()

    def vote(self) -> jax.Array | None:
        """This process's vote on a step, on its way to the others; None where there are none."""
        return self._votes.start(self.requested is not None) if self._votes else None

    def agreed(self, vote: jax.Array | None) -> str | None:
        """Why to stop now, or None: what all processes say to a vote, or this one alone says where it has none."""
        if self._votes is None:
            return self.requested
        if vote is None or not int(vote):
            return None
        return self.requested or "another process"

    def _request_stop(self, reason: str) -> None:
        self._noticed = reason


class _Votes:
    """A collective over all devices that is true where any process says so. It is started and not waited for."""

    def __init__(self):
        devices = np.array(jax.devices())
        mesh = Mesh(devices, ("all",))
        self._split, self._shape = NamedSharding(mesh, PartitionSpec("all")), (len(devices),)
        self._any = jax.jit(lambda votes: votes.max(), out_shardings=NamedSharding(mesh, PartitionSpec()))

    def start(self, stop: bool) -> jax.Array:
        mine = np.full(jax.local_device_count(), int(stop), np.int32)
        return self._any(jax.make_array_from_process_local_data(self._split, mine, self._shape))


class _CloudNotice:
    """A thread that asks the machine's metadata server whether the machine is about to be taken.

    A notice counts once, when it comes. One that stands already at the first look has been obeyed by an earlier start
    of the run: a machine says an hour ahead that it is to be maintained, and until it goes a run can work on it.
    """

    def __init__(self, request_stop: Callable[[str], None]):
        self._request_stop, self._seconds, self._ended = request_stop, _POLL_SECONDS, threading.Event()
        self._failed = False
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # a proxy is another machine
        threading.Thread(target=self._run, name="cloud notice", daemon=True).start()

    def close(self) -> None:
        """Ends the thread with its next look."""
        self._ended.set()

    def _run(self) -> None:
        last: dict[str, str] = {}
        while not self._ended.is_set():
            for key, bad in _NOTICES.items():
                value = self._read(key)
                if value == bad and last.get(key, bad) != bad:
                    logging.warning("the cloud is about to take this machine (%s is %s): saving", key, bad)
                    self._request_stop(f"{key}={bad}")
                    return
                if value == bad and key not in last:
                    logging.warning(
                        "the cloud said before this start already that it will take this machine (%s is %s): the run "
                        "goes on until it is asked again, or SIGTERM comes",
                        *(key, bad),
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
            with self._open(request, timeout=self._seconds) as answer:
                return answer.read().decode().strip()
        except OSError as error:
            if not self._failed:  # a machine that cannot ask still gets SIGTERM
                logging.warning("the metadata server does not say whether this machine is about to go: %s", error)
            self._failed = True
            return None


def _on_google_machine() -> bool:
    try:
        return "Google" in _PRODUCT.read_text()
    except OSError:
        return False
