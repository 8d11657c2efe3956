"""Handles SIGINT (Ctrl-C), SIGTERM and SIGHUP during a command. Does not import JAX.

While there is nothing to save, a signal raises `Stopped` in the main thread. After `StopSignals.defer` a signal is only
recorded, and the training loop checks for it after each step. In both cases a second Ctrl-C ends the process at once.

Python runs signal handlers only in the main thread, after the current call into C has returned: a compilation takes
minutes, and a collective that has lost a process may never return. Therefore a second thread receives each signal
through `signal.set_wakeup_fd`, and ends the process if the main thread does not.
"""

import contextlib
import os
import signal
import threading
import types
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How long a command may take to exit after a signal when there is nothing to save.
GRACE_SECONDS = 5.0


class Stopped(KeyboardInterrupt):
    """A signal ended a command before there was anything to save.

    Attributes:
      exit_code: 128 + the number of the signal.
    """

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class StopSignals:
    """Handles signals after `install` and records the first one. Use `watched` to create it.

    Args:
      exit_code: See `watched`.

    Attributes:
      requested: Name of the first signal, or None.
    """

    def __init__(self, exit_code: int | None = None):
        self._exit_code = exit_code
        self.requested: str | None = None
        self._seen: str | None = None  # like `requested`, but set by the thread
        self._deferred = False
        self._previous: dict[int, object] = {}
        self._pipe: tuple[int, int] | None = None
        self._timer: threading.Timer | None = None

    def check(self) -> None:
        """Raises `Stopped` if a library has suppressed the exception of a received signal."""
        if self.requested is not None and not self._deferred:
            raise Stopped(signal.Signals[self.requested])

    def defer(self) -> None:
        """Records signals from now on without raising `Stopped`, because there is progress to save."""
        self._deferred = True
        self._cancel()

    def undefer(self) -> None:
        """Raises on signals again from now on."""
        self._deferred = False

    def install(self) -> None:
        """Installs the handlers. Signals that the process was started to ignore, as with nohup, stay ignored."""
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._previous[number] = signal.signal(number, self._receive)
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._previous_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(self._pipe[0],), name="stop signals", daemon=True).start()

    def uninstall(self) -> None:
        """Restores the previous handlers."""
        self._cancel()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
        if self._pipe:
            signal.set_wakeup_fd(self._previous_wakeup)
            os.close(self._pipe[1])  # ends the thread, which closes the other end
            self._pipe = None

    def _receive(self, number, frame) -> None:
        if self.requested is None:
            self.requested = signal.Signals(number).name
            if self._deferred:
                return
            if _is_importing(frame):  # an exception during an import can abort C++ modules
                _end(self._exit_code or 128 + number, f"stopped by {self.requested}")
            raise Stopped(number)

    def _watch(self, pipe: int) -> None:
        while numbers := os.read(pipe, 64):
            for number in numbers:
                if number in self._previous:
                    self._see(number)
        os.close(pipe)

    def _see(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._seen is None:
            self._seen = name
            if self._deferred:
                _print(f"{name}: training saves and stops after this step; Ctrl-C (once more) stops without saving")
            else:
                self._timer = threading.Timer(
                    GRACE_SECONDS, _end, (self._exit_code or 128 + number, f"stopped by {name}")
                )
                self._timer.daemon = True
                self._timer.start()
        elif number == signal.SIGINT:
            _end(128 + number, f"stopped by SIGINT after {self._seen}: nothing was saved")

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_active: StopSignals | None = None


@contextlib.contextmanager
def watched(exit_code: int | None = None) -> Iterator[StopSignals]:
    """Handles signals while the context is active; nested contexts share one `StopSignals`.

    Outside the main thread, signals cannot be handled and none is reported.

    Args:
      exit_code: Exit code of a process that a signal ends during an import or after the grace period; None: 128 + the
        number of the signal.
    """
    global _active
    if _active is not None or threading.current_thread() is not threading.main_thread():
        yield _active or StopSignals(exit_code)
        return
    _active = StopSignals(exit_code)
    _active.install()
    try:
        yield _active
    finally:
        _active.uninstall()
        _active = None


@contextlib.contextmanager
def released() -> Iterator[None]:
    """Lets Ctrl-C raise `KeyboardInterrupt` while the context is active, any number of times, as in a shell."""
    active = _active if threading.current_thread() is threading.main_thread() else None
    if active is None:
        yield
        return
    active.uninstall()
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        active.install()


@contextlib.contextmanager
def recorded_interrupts() -> Iterator[list[int]]:
    """Appends the number of each Ctrl-C to a list while the context is active, and raises no `KeyboardInterrupt`.

    For code that starts and joins threads: an exception there can leave the locks of `threading` in a wrong state.
    Outside the main thread, where no handler can be installed, the list stays empty.
    """
    interrupts: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    previous = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous)


def _is_importing(frame: types.FrameType | None) -> bool:
    """Returns whether `frame` or one of its callers executes an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _print(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"\nt5x_like: {line}\n".encode())


def _end(exit_code: int, line: str) -> None:
    _print(line)
    os._exit(exit_code)


def _restore_in_child() -> None:
    """Restores the previous handlers in a forked child, which handles its own signals."""
    global _active
    if _active is not None:
        _active.uninstall()
        _active = None


os.register_at_fork(after_in_child=_restore_in_child)
