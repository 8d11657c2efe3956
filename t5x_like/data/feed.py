"""The feed: prefetches host batches in a thread, transfers them to the devices, and saves and restores its position."""

import collections
import io
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from t5x_like.data import blocked
from t5x_like.errors import UserError

HostBatch = Mapping[str, np.ndarray]
"""Model feature -> the rows of this process, `[rows, length]` or `[rows, choices, length]`."""

_MAGIC = b"t5x_like feed 1\n"


class DataMismatchError(UserError):
    """A position was saved in other data: another task, batch size, lengths or number of processes."""


def unknown_position(state: bytes, place: str) -> DataMismatchError:
    """Returns the error that a position was saved by another kind of host iterator.

    Args:
      state: The position.
      place: What it should be a position in, such as "a cache".
    """
    return DataMismatchError(
        f"the data cannot resume from the saved position: {len(state)} bytes that begin with {state[:24]!r} are not a "
        f"position in {place}: it was saved with another kind of data source, BATCH_RAMP or UPDATES_PER_ROLLOUT."
    )


@runtime_checkable
class HostIterator(Protocol):
    """Iterator over the batches of one process, whose position can be saved and restored."""

    def __next__(self) -> HostBatch:
        """Returns the next batch."""

    def state(self) -> bytes:
        """Returns the position after the last batch."""

    def restore(self, state: bytes) -> None:
        """Moves to a position that `state` returned.

        Raises:
          DataMismatchError: the position was saved in other data.
        """


@runtime_checkable
class SeekableIterator(HostIterator, Protocol):
    """Host iterator that also returns earlier positions, so that no prefetched batch has to be stored."""

    def state_before(self, batches: int) -> bytes:
        """Returns the position that many batches before the last one.

        Args:
          batches: Number of batches to go back.
        """


@runtime_checkable
class Feed(Protocol):
    """Iterator over global sharded batches that a training loop reads.

    Attributes:
      wait_seconds: Total time in seconds that `__next__` has waited for data.
    """

    wait_seconds: float

    def __next__(self) -> Mapping[str, Any]:
        """Returns the next batch: model feature -> global array."""

    def state(self) -> bytes:
        """Returns the position after the last batch that was returned."""

    def restore(self, state: bytes) -> None:
        """Moves to a position that `state` returned.

        Raises:
          DataMismatchError: the position was saved in other data.
        """

    def metrics(self, batches: int) -> Mapping[str, float]:
        """Returns what is known of the data, under the keys of `metrics.jsonl`.

        Args:
          batches: number of batches that were returned since the start or since `restore`. Metrics of caches describe
            them and all batches before the restored position. Metrics of a live pipeline, such as `bad_records`,
            describe what it has read since this start; it may have read further.
        """


class PrefetchingFeed:
    """Prefetches the batches of a host iterator in a thread and puts them on the devices.

    `state()` is the position after the last batch that was returned, however far the thread has read. It consists of
    the position of the iterator and the prefetched batches. For a `SeekableIterator` it is the earlier position alone.
    That position contains no rows of this process, so it is valid for any number of processes.

    Args:
      host_iterator: Source of batches. From now on only the thread reads it.
      put: Converts a host batch to global arrays, such as `Partitioner.put_batch`; called in the thread.
      prefetch: Number of batches to keep ready.
      name: Name of the data, for the log.

    Attributes:
      wait_seconds: Total time in seconds that `__next__` has waited for data.
    """

    def __init__(
        self,
        host_iterator: HostIterator | SeekableIterator,
        put: Callable[[HostBatch], Mapping[str, Any]],
        prefetch: int = 2,
        name: str = "data",
    ):
        if prefetch < 1:
            raise ValueError(f"prefetch={prefetch} is not a positive integer.")
        self._source, self._put, self._prefetch, self._name = host_iterator, put, prefetch, name
        self.wait_seconds = 0.0
        self._ready: collections.deque[tuple[HostBatch, Mapping[str, Any]]] = collections.deque()
        self._changed = threading.Condition()
        # Held while a batch moves from the iterator into `_ready`, so that `state` does not miss a batch in between.
        self._moving = threading.Lock()
        self._error: BaseException | None = None
        self._stopping = False
        self._thread = self._start()

    def __iter__(self) -> "PrefetchingFeed":
        return self

    def __next__(self) -> Mapping[str, Any]:
        """Returns the next batch.

        Raises:
          StopIteration: the data has ended.
          Exception: the error of the iterator or of `put`; every later call raises it again.
        """
        started = time.perf_counter()
        with self._changed:
            while not self._changed.wait_for(self._is_decided, blocked.SECONDS):
                blocked.warn(self._name, time.perf_counter() - started)
            self.wait_seconds += time.perf_counter() - started
            if self._ready:
                batch = self._ready.popleft()[1]
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
        raise RuntimeError("the feed is closed")

    def _is_decided(self) -> bool:
        return bool(self._ready) or self._error is not None or self._stopping

    def metrics(self, batches: int) -> Mapping[str, float]:
        """Returns the metrics of the host iterator, if it has any; see `Feed`."""
        return getattr(self._source, "metrics", lambda batches: {})(batches)

    def state(self) -> bytes:
        """Returns the position after the last batch that was returned."""
        with self._moving:
            if hasattr(self._source, "state_before"):
                return pack(self._source.state_before(len(self._ready)), [])
            source_state = self._source.state()
            pending = [host_batch for host_batch, _ in self._ready]
        return pack(source_state, pending)

    def restore(self, state: bytes) -> None:
        """Moves to a position that `state()` returned, and discards the batches prefetched so far.

        Raises:
          DataMismatchError: the position was saved in other data; the feed stays at its position.
        """
        source_state, pending = unpack(state)
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
        """Stops the thread. A second call has no effect."""
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
        except BaseException as error:  # `__next__` raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()


def pack(source_state: bytes, pending: list[HostBatch]) -> bytes:
    """Serializes a position: a line with the format, a line with lengths, the iterator's state, the pending batches."""
    arrays = {f"{index}/{name}": array for index, batch in enumerate(pending) for name, array in batch.items()}
    stored = io.BytesIO()
    np.savez(stored, **arrays)
    header = {"pending": len(pending), "source": len(source_state)}
    return _MAGIC + json.dumps(header).encode() + b"\n" + source_state + stored.getvalue()


def unpack(state: bytes) -> tuple[bytes, list[HostBatch]]:
    """Returns the state of the iterator and the pending batches that `pack` has serialized.

    Raises:
      DataMismatchError: `pack` has not serialized them.
    """
    if not state.startswith(_MAGIC):
        raise unknown_position(state, "a feed")
    line, _, body = state[len(_MAGIC) :].partition(b"\n")
    header = json.loads(line)
    source_state, stored = body[: header["source"]], body[header["source"] :]
    pending: list[dict[str, np.ndarray]] = [{} for _ in range(header["pending"])]
    with np.load(io.BytesIO(stored)) as arrays:
        for key in arrays.files:
            index, _, name = key.partition("/")
            pending[int(index)][name] = arrays[key]
    return source_state, pending
