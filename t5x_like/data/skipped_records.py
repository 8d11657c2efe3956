"""The records of files that are skipped because they cannot be read (`ON_BAD_RECORD=skip`), counted per reader.

A source of files counts them in the `SkippedRecords` of the context in which its data is requested, so that training,
and each shard of a cache, has counts of its own. TensorFlow's threads read the files later.
"""

import contextlib
import contextvars
import threading
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping

from absl import logging

EMPTY, OTHER, HTML = "empty_records", "other_records", "html_responses"
BAD, DAMAGED = "bad_records", "damaged_files"
_WITHOUT_TEXT = frozenset({EMPTY, OTHER})
"""Reasons for skipping records that have no text: nothing is lost."""
# Number of problems per file and reason that are logged individually.
_LOGGED = 3

_CURRENT = contextvars.ContextVar("skipped records", default=None)


class SkippedRecords:
    """Counts the records of files that have no document, once per file however often it is read; for any thread.

    The counts never decrease: during a later pass over a file, they are the maximum over its passes.
    """

    def __init__(self):
        self._lock = threading.Lock()
        # (path, part) -> counts of the current pass, and the maximum of earlier passes.
        self._counts: dict[tuple[str, Hashable], Counter[str]] = {}
        self._earlier: dict[tuple[str, Hashable], Counter[str]] = {}

    @property
    def bad(self) -> Counter[str]:
        """Reason -> number of records or files, without records that have no text."""
        with self._lock:
            total = sum(self._all().values(), Counter())
        return Counter({reason: count for reason, count in total.items() if reason not in _WITHOUT_TEXT})

    def per_file(self) -> dict[str, dict[str, int]]:
        """Returns path -> reason -> number, of files with records other than those without text; by path."""
        found: dict[str, Counter[str]] = {}
        with self._lock:
            for (path, _), counts in self._all().items():
                found.setdefault(path, Counter()).update(
                    {key: n for key, n in counts.items() if key not in _WITHOUT_TEXT}
                )
        return {path: dict(sorted(counts.items())) for path, counts in sorted(found.items()) if counts}

    def merge(self, per_file: Mapping[str, Mapping[str, int]]) -> None:
        """Sets the counts of files that another reader has counted.

        Args:
          per_file: path -> reason -> number; see `per_file`. Merging the same files again does not add to them.
        """
        with self._lock:
            self._counts |= {(path, None): Counter(counts) for path, counts in per_file.items()}

    def begin(self, path: str, part: Hashable) -> None:
        """Begins a pass over a file, or over the part of its records that one reader has."""
        key = path, part
        with self._lock:
            self._earlier[key] = self._earlier.get(key, Counter()) | self._counts.get(key, Counter())
            self._counts[key] = Counter()

    def add(self, path: str, part: Hashable, reason: str, message: str = "") -> None:
        """Counts a record, and logs the first messages of a file."""
        with self._lock:
            counts = self._counts.setdefault((path, part), Counter())
            counts[reason] += 1
            is_logged = message and counts[reason] <= _LOGGED
        if is_logged:
            logging.warning("skipped: %s", message)

    def end(self, path: str, part: Hashable, records: int) -> None:
        """Logs the counts of a file at its end."""
        with self._lock:
            counts = Counter(self._counts.get((path, part)))
        if not records:
            logging.warning("%s: the file has no records", path)
        if counts:
            level = logging.WARNING if counts.keys() - _WITHOUT_TEXT else logging.INFO
            logging.log(level, "%s: skipped: %s", path, describe(counts))

    def _all(self) -> dict[tuple[str, Hashable], Counter[str]]:
        return {key: counts | self._earlier.get(key, Counter()) for key, counts in self._counts.items()}


def noun(reason: str, count: int) -> str:
    """Returns a reason in words, such as `damaged file` for a count of 1."""
    return reason.replace("_", " ").removesuffix("s" if count == 1 else "")


def describe(counts: Mapping[str, int]) -> str:
    """Describes counts per reason, such as `5 bad records, 1 damaged file`."""
    return ", ".join(f"{count:,} {noun(reason, count)}" for reason, count in counts.items())


@contextlib.contextmanager
def counted(skipped: SkippedRecords | None) -> Iterator[None]:
    """Sets the counts of the sources whose data is requested in this context; None to log them only."""
    token = _CURRENT.set(skipped)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> SkippedRecords | None:
    """Returns the counts of the context; None if nothing asks for them."""
    return _CURRENT.get()
