"""Where the documents of examples come from, on request: from a source of documents to the writer of a cache.

A source that knows the places of its documents adds the feature `document` to each, int32 `[2]`: the number of its
file, from 1, so that 0 is padding, and the number of its record. It describes the document in the `Recorder` of the
context. Preprocessors that make examples of documents replace it by `documents`, int32 `[any, 2]`, the documents of
each example in their order.
"""

import collections
import contextlib
import contextvars
import threading
from collections.abc import Iterator, Mapping

from t5x_like.errors import RunFailed

DOCUMENT, DOCUMENTS = "document", "documents"
PLACE = 2
"""Number of integers that identify a document: the numbers of its file and of its record."""
# Documents whose descriptions are kept until their rows are written, which take about half a kilobyte each.
_MOST = 1 << 18

_RECORDER = contextvars.ContextVar("recorder", default=None)


class Recorder:
    """The descriptions of the documents that were read last, by their places; for any thread."""

    def __init__(self):
        self._lock = threading.Lock()
        self._found: collections.OrderedDict[tuple[int, int], Mapping[str, str | int]] = collections.OrderedDict()

    def add(self, file: int, record: int, description: Mapping[str, str | int]) -> None:
        """Records a document.

        Args:
          file: Number of its file, from 1.
          record: Number of its record in the file.
          description: Its `place`, and other fields such as `url`.
        """
        with self._lock:
            self._found[file, record] = description
            if len(self._found) > _MOST:
                self._found.popitem(last=False)

    def __getitem__(self, place: tuple[int, int]) -> Mapping[str, str | int]:
        with self._lock:
            if (found := self._found.get(place)) is None:
                raise RunFailed(
                    f"PROVENANCE: more than {_MOST:,} documents were read before the row with document {place[1]} of "
                    f"file {place[0]} was written. Join short documents, or set PROVENANCE=False."
                )
            return found


@contextlib.contextmanager
def recorded(recorder: Recorder | None) -> Iterator[None]:
    """Sets the recorder of the sources whose data is requested in this context; None for none."""
    token = _RECORDER.set(recorder)
    try:
        yield
    finally:
        _RECORDER.reset(token)


def current_recorder() -> Recorder | None:
    """Returns the recorder of the context; None if places are not asked for."""
    return _RECORDER.get()
