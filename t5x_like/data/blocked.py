"""Reports data that is waited for, because a source or a preprocessor blocks, or yields nothing that can be used."""

import threading
import time
from collections.abc import Iterator
from typing import TypeVar

from absl import logging

SECONDS = 60.0
"""Time after which data that is waited for is reported, and again each time that it has passed."""

T = TypeVar("T")


def warn(name: str, seconds: float) -> None:
    """Logs that nothing was read for some seconds from the data with a name."""
    logging.warning(
        "%s: no data for %.0f s, still waiting. Its source or a preprocessor blocks, or its examples have only "
        "padding; `t5x_like inspect` shows them.",
        *(name, seconds),
    )


def report(items: Iterator[T], name: str) -> Iterator[T]:
    """Yields items, and reports one that is waited for.

    Args:
      items: The items. The time that the caller needs for an item does not count.
      name: Name of the data.
    """
    ended = threading.Event()
    since: list[float | None] = [None]

    def watch() -> None:
        reported: tuple[float | None, int] = (None, 0)
        while not ended.wait(SECONDS / 10):
            started = since[0]
            times = reported[1] if reported[0] == started else 0
            if started is not None and (waited := time.monotonic() - started) > SECONDS * (times + 1):
                reported = (started, times + 1)
                warn(name, waited)

    threading.Thread(target=watch, name="blocked data", daemon=True).start()
    try:
        while True:
            since[0] = time.monotonic()
            try:
                item = next(items)
            except StopIteration:
                return
            since[0] = None
            yield item
    finally:
        ended.set()
