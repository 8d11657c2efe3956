"""The lock MODEL_DIR/lock.json, which ensures that only one run at a time writes to a run directory.

The lock names its holder and a counter that the holder increments every `HEARTBEAT_SECONDS`. A second start fails while
the holder is alive. It takes the lock over if the holder is dead (known for processes of this machine) or sends no
heartbeat for `STALE_SECONDS`. It waits for a change of the counter instead of comparing clocks, because clocks of hosts
differ; only a lock whose last heartbeat is over an hour old is taken over without waiting.

Creating the lock is atomic on local file systems and in stores that support it (Cloud Storage's generation
preconditions, through fsspec). A stale lock is replaced only by the process that has created lock.json.takeover, and
only if the lock is still the one that was found stale, so that of several starts one succeeds, however long any of them
is delayed. A start that dies in between leaves a lock.json.takeover, which is taken over in the same way.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import socket
import threading
import time

from absl import logging

from t5x_like import paths
from t5x_like.errors import RunFailed
from t5x_like.runtime import run_files

LOCK = "lock.json"
HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 120.0
# A lock whose heartbeat is older than this is stale, however much the clocks of the hosts differ.
_ANCIENT_SECONDS = 3600.0
_POLL_SECONDS = 1.0


class RunInUse(RunFailed):
    """Another process holds the run directory. A supervisor may retry, since the holder may be about to exit."""


class RunMoved(RunFailed):
    """The run directory was renamed or deleted during the run."""


@dataclasses.dataclass(frozen=True)
class _Holder:
    """The holder of a lock.

    Attributes:
      token: random id of this start of the run.
      host: host name.
      process: process id.
      machine: boot id and process namespace, within which `process` is unique.
      process_start: start time of the process, which distinguishes it from a later process with the same id.
      since: time at which the lock was taken, in seconds since 1970.
      beats: number of heartbeats sent.
      heartbeat: time of the last heartbeat, in seconds since 1970.
    """

    token: str
    host: str
    process: int
    machine: str
    process_start: str
    since: float
    beats: int
    heartbeat: float

    @classmethod
    def current(cls) -> "_Holder":
        """Returns this process as a new holder."""
        now, process = time.time(), os.getpid()
        return cls(
            secrets.token_hex(8), socket.gethostname(), process, _machine(), _process_start(process), now, 0, now
        )

    @classmethod
    def parse(cls, text: str) -> "_Holder | None":
        """Parses the text of a lock; None if it is invalid, for example while it is being written."""
        try:
            stored = json.loads(text)
            return cls(**{field.name: field.type(stored[field.name]) for field in dataclasses.fields(cls)})
        except (ValueError, TypeError, KeyError):
            return None

    def is_dead(self) -> bool:
        """Returns whether the holder is a process of this machine that no longer runs."""
        return self.machine == _machine() and _process_start(self.process) != self.process_start

    def __str__(self) -> str:
        since, heartbeat = (
            time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(timestamp)) for timestamp in (self.since, self.heartbeat)
        )
        return f"process {self.process} on host {self.host}, since {since}, last heartbeat {heartbeat}"


class RunLock:
    """The lock of a run directory, held while used as a context manager.

    Args:
      model_dir: the run directory, local or in a store.
      enabled: whether to take the lock; True only in process 0, which holds it for the whole run.
      stale_seconds: a holder without a heartbeat for this long is considered dead.
    """

    def __init__(self, model_dir: str, *, enabled: bool = True, stale_seconds: float = STALE_SECONDS):
        self._model_dir, self._path = model_dir, paths.join(model_dir, LOCK)
        self._enabled, self._stale = enabled, stale_seconds
        self._mine: _Holder | None = None
        self._lost: str | None = None
        self._confirmed = time.monotonic()
        self._ended = threading.Event()
        self._heartbeat_lock = threading.Lock()
        self._thread = threading.Thread(target=self._send_heartbeats, name="run lock", daemon=True)

    def __enter__(self) -> "RunLock":
        """Takes the lock; waits at most `stale_seconds` for a heartbeat of a holder on another machine.

        Raises:
          RunInUse: the holder is alive.
          OSError: the directory cannot be written.
        """
        if self._enabled:
            mine = _Holder.current()
            self._acquire(self._path, mine)
            self._mine, self._confirmed = mine, time.monotonic()
            self._thread.start()
        return self

    def __exit__(self, kind=None, error=None, trace=None) -> None:
        """Removes the lock.

        Raises:
          RunMoved: the cause of an error within the context is that the directory no longer exists.
        """
        self._ended.set()
        if self._mine is None:
            return
        self._thread.join()
        if run_files.is_missing(self._model_dir):
            if isinstance(error, Exception) and not isinstance(error, RunMoved):
                raise self._moved() from error
            return
        with contextlib.suppress(Exception):  # the next start takes over a lock that remains
            if (holder := _read(self._path)) and holder.token == self._mine.token:
                paths.remove(self._path)

    def check(self) -> None:
        """Raises if another run has taken the lock over, for example after this process was suspended.

        Raises:
          RunInUse: the lock was lost; the message names the new holder.
          RunMoved: the directory no longer exists; writing on would create an incomplete one in its place.
        """
        if self._mine is not None and run_files.is_missing(self._model_dir):
            raise self._moved()
        if self._mine is not None and time.monotonic() - self._confirmed > self._stale / 2:
            self._send_heartbeat()
        if self._lost:
            raise RunInUse(
                f"MODEL_DIR={self._model_dir} was taken over by {self._lost}: this process sent no heartbeat for "
                f"{self._stale:.0f} s. It stops without further writes."
            )

    def _moved(self) -> RunMoved:
        return RunMoved(
            f"MODEL_DIR={self._model_dir} was renamed or deleted during the run, which stops without further writes. "
            "If it was renamed, give its new path as MODEL_DIR, or rename it back; the same command then resumes."
        )

    def _acquire(self, path: str, mine: _Holder) -> None:
        """Creates the lock file `path`, or replaces it if it is stale.

        Raises:
          RunInUse: the holder is alive, or another start was faster.
        """
        if paths.create(path, _text(mine)):
            return
        stale, why = self._wait_until_free(path)
        takeover = f"{path}.takeover"
        self._acquire(takeover, mine)
        try:
            now = _read_text(path)
            if now == stale and now is not None:
                logging.warning("taking over %s of %s: %s", path, _Holder.parse(now) or "an unknown process", why)
                paths.write_despite_full_disk(path, _text(mine))
            elif now is not None or not paths.create(path, _text(mine)):
                raise self._in_use(_read(path))
        finally:
            if (holder := _read(takeover)) and holder.token == mine.token:
                paths.remove(takeover)

    def _wait_until_free(self, path: str) -> tuple[str | None, str]:
        """Waits until a lock is stale or removed; at most `stale_seconds`.

        Returns:
          The text of the stale lock, None if it was removed; and the reason why it is free.

        Raises:
          RunInUse: the holder is alive.
        """
        text, is_logged = _read_text(path), False
        started = time.monotonic()
        while text is not None:
            holder = _Holder.parse(text)
            if why := self._why_free(holder, time.monotonic() - started):
                return text, why
            if not is_logged:
                logging.info(
                    "%s is held by %s: waiting at most %.0f s for its next heartbeat",
                    *(path, holder or "an unknown process", self._stale),
                )
                is_logged = True
            time.sleep(_POLL_SECONDS)
            before, text = holder, _read_text(path)
            now = _Holder.parse(text or "")
            if now is not None and before is not None and (now.token, now.beats) != (before.token, before.beats):
                raise self._in_use(now)
        return None, "its holder has just exited"

    def _why_free(self, holder: _Holder | None, watched: float) -> str | None:
        """Returns the reason why a lock can be taken over, or None.

        Raises:
          RunInUse: the holder is a running process of this machine.
        """
        if holder is not None:
            if holder.is_dead():
                return "that process has ended"
            if holder.machine == _machine():
                raise self._in_use(holder)
            if time.time() - holder.heartbeat > _ANCIENT_SECONDS:
                return "its last heartbeat is too old"
        return f"it has sent no heartbeat for {self._stale:.0f} s" if watched > self._stale else None

    def _in_use(self, holder: _Holder | None) -> RunInUse:
        return RunInUse(
            f"MODEL_DIR={self._model_dir} is in use by {holder or 'another process'}. Wait until it ends, stop it, or "
            f"give another MODEL_DIR. If it is dead, the next start takes over after no heartbeat for "
            f"{self._stale / 60:g} minutes, or at once after `rm {self._path}`."
        )

    def _send_heartbeats(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS) and not self._lost:
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        if run_files.is_missing(self._model_dir):  # which the write would create again; see `check`
            return
        with self._heartbeat_lock:
            try:
                holder = _read(self._path)
                if holder is not None and holder.token != self._mine.token:
                    self._lost = str(holder)
                    return
                self._mine = dataclasses.replace(self._mine, beats=self._mine.beats + 1, heartbeat=time.time())
                paths.write_despite_full_disk(self._path, _text(self._mine))
                self._confirmed = time.monotonic()
            except Exception as error:  # each store raises its own errors; the next heartbeat may succeed
                logging.warning("%s: the heartbeat was not written: %s", self._path, error)


class LockObserver:
    """Observes the lock of a run from another process.

    Args:
      model_dir: the run directory, local or in a store.
      stale_seconds: a run that is not seen to hold or renew the lock for this long is considered dead.
    """

    def __init__(self, model_dir: str, *, stale_seconds: float | None = None):
        self._path = paths.join(model_dir, LOCK)
        self._stale = STALE_SECONDS if stale_seconds is None else stale_seconds
        self._seen: tuple[str, int] | None = None
        self._renewed = time.monotonic()

    def is_stale(self) -> bool:
        """Reads the lock, and returns whether it has been missing or unchanged for `stale_seconds`.

        A process of this machine that no longer runs is not considered dead earlier, because a supervisor may restart
        the run.
        """
        holder = _read(self._path)
        now = time.monotonic()
        if holder is not None and (holder.token, holder.beats) != self._seen:
            self._seen, self._renewed = (holder.token, holder.beats), now
        return now - self._renewed > self._stale


def _read(path: str) -> _Holder | None:
    """Returns the holder of a lock, or None if the lock does not exist or is being written."""
    return _Holder.parse(_read_text(path) or "")


def _read_text(path: str) -> str | None:
    """Returns the text of a lock, or None if the lock does not exist."""
    try:
        return paths.read_text(path)
    except FileNotFoundError:
        return None


def _text(holder: _Holder) -> str:
    return json.dumps(dataclasses.asdict(holder), indent=2) + "\n"


def _machine() -> str:
    """Returns the boot id and the process namespace, which differs between containers.

    Returns the host name on systems without /proc.
    """
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _process_start(process: int) -> str:
    """Returns the start time of a process of this machine in clock ticks since boot, or "" if it does not run."""
    if not os.path.exists("/proc/self/stat"):  # macOS has no /proc, so only whether the process runs is known
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return ""
        except PermissionError:
            pass
        return "unknown"
    try:
        stat = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # The name in parentheses may contain any character. After it, the state is field 1 and the start time field 20.
    state, *fields = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
