"""The feed: a thread that fetches host batches ahead, puts them on the devices, and knows where it is."""

import collections
import io
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from t5x_like.errors import UserError

HostBatch = Mapping[str, np.ndarray]
_MAGIC = b"t5x_like feed 1\n"


class DataMismatchError(UserError):
    """A position was saved in other data: another task, batch size, lengths, or number of processes."""


class HostIterator(Protocol):
    """Where a feed's batches come from: this process's rows, and a position that can be saved."""

    def __next__(self) -> HostBatch: ...

    def state(self) -> bytes: ...

    def restore(self, state: bytes) -> None: ...


class SeekableIterator(HostIterator, Protocol):
    """A host iterator that also knows earlier positions, so that no batch has to be stored with them."""

    def state_before(self, batches: int) -> bytes: ...


class Feed:
    """Batches as global arrays, `prefetch` of them ahead.

    `state()` is the position after the last batch handed out, however far the thread ran: that of the iterator and
    the batches that lie between the two. Of a `SeekableIterator` it is the earlier position alone, which holds no rows
    of this process and so means the same to any number of them.

    Attributes:
      wait_seconds: how long `__next__` has waited for data so far.
    """

    def __init__(
        self,
        host_iterator: HostIterator | SeekableIterator,
        put: Callable[[HostBatch], Mapping[str, Any]],
        prefetch: int = 2,
    ):
        """Starts fetching.

        Args:
          host_iterator: read by the thread alone from now on.
          put: turns a host batch into global arrays, such as `Partitioner.put_batch`; called in the thread.
          prefetch: how many batches to keep ready.
        """
        if prefetch < 1:
            raise ValueError(f"prefetch={prefetch} must be at least 1")
        self._source, self._put, self._prefetch = host_iterator, put, prefetch
        self.wait_seconds = 0.0
        self._ready: collections.deque[tuple[HostBatch, Mapping[str, Any]]] = collections.deque()
        self._changed = threading.Condition()
        # Held while a batch moves from the iterator into `_ready`, so that `state` never sees one that is in neither.
        self._moving = threading.Lock()
        self._error: BaseException | None = None
        self._stopping = False
        self._thread = self._start()

    def __iter__(self) -> "Feed":
        return self

    def __next__(self) -> Mapping[str, Any]:
        """The next batch.

        Raises:
          StopIteration: the data has ended.
          Exception: whatever the iterator or `put` raised, each time.
        """
        started = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._error is not None or self._stopping)
            self.wait_seconds += time.perf_counter() - started
            if self._ready:
                batch = self._ready.popleft()[1]
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
        raise RuntimeError("this feed has been closed")

    def state(self) -> bytes:
        """The position after the last batch handed out."""
        with self._moving:
            if hasattr(self._source, "state_before"):
                return _pack(self._source.state_before(len(self._ready)), [])
            source_state = self._source.state()
            pending = [host_batch for host_batch, _ in self._ready]
        return _pack(source_state, pending)

    def restore(self, state: bytes) -> None:
        """Goes to a position that `state()` gave; what was prefetched until now is dropped.

        Raises:
          DataMismatchError: the position was saved in other data; the feed continues where it was.
        """
        source_state, pending = _unpack(state)
        self._stop()
        try:
            self._source.restore(source_state)
        except DataMismatchError:
            self._thread = self._start()
            raise
        self._ready.clear()
        self._ready.extend((host_batch, self._put(host_batch)) for host_batch in pending)
        self._error = None
        self._thread = self._start()

    def close(self) -> None:
        """Ends the thread. Harmless when repeated."""
        self._stop()
        self._ready.clear()

    def _start(self) -> threading.Thread:
        self._stopping = False
        thread = threading.Thread(target=self._run, name="feed", daemon=True)
        thread.start()
        return thread

    def _stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping or len(self._ready) < self._prefetch)
                    if self._stopping:
                        return
                with self._moving:
                    host_batch = next(self._source)
                    entry = (host_batch, self._put(host_batch))
                    with self._changed:
                        self._ready.append(entry)
                        self._changed.notify_all()
        except BaseException as error:  # handed to whoever asks for the next batch
            with self._changed:
                self._error = error
                self._changed.notify_all()


def _pack(source_state: bytes, pending: list[HostBatch]) -> bytes:
    """A line that says what it is, a line with lengths, the state of the iterator, the pending batches."""
    arrays = {f"{index}/{name}": array for index, batch in enumerate(pending) for name, array in batch.items()}
    stored = io.BytesIO()
    np.savez(stored, **arrays)
    header = {"pending": len(pending), "source": len(source_state)}
    return _MAGIC + json.dumps(header).encode() + b"\n" + source_state + stored.getvalue()


def _unpack(state: bytes) -> tuple[bytes, list[HostBatch]]:
    if not state.startswith(_MAGIC):
        raise ValueError(f"{len(state)} bytes that begin with {state[:20]!r} are not the state of a feed")
    line, _, body = state[len(_MAGIC) :].partition(b"\n")
    header = json.loads(line)
    source_state, stored = body[: header["source"]], body[header["source"] :]
    pending: list[dict[str, np.ndarray]] = [{} for _ in range(header["pending"])]
    with np.load(io.BytesIO(stored)) as arrays:
        for key in arrays.files:
            index, _, name = key.partition("/")
            pending[int(index)][name] = arrays[key]
    return source_state, pending
