"""Being asked to stop: SIGTERM, as clouds send before they take a machine, and Ctrl-C."""

import signal
import threading


class StopRequest:
    """Turns SIGTERM and Ctrl-C into `requested`, so that the loop can save and leave; a second Ctrl-C raises.

    Use it as a context manager around the loop. Outside the main thread, where signals cannot be caught, it never
    fires.
    """

    def __init__(self):
        self.requested: str | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number, frame):
        if number == signal.SIGINT and self.requested:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number).name
