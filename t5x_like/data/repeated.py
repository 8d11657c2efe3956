"""Repeats each batch, for objectives of which several updates read the same batch."""

from collections.abc import Callable, Mapping
from typing import Any

from t5x_like.data.feed import HostBatch, HostIterator, SeekableIterator, pack, unpack

# Bytes of the number of batches, before the position of the source.
_HEADER_BYTES = 8


def host_iterator(source: HostIterator, times: int) -> HostIterator:
    """Returns an iterator that returns each batch of another one several times in a row.

    Args:
      source: The other iterator.
      times: How often each batch is returned.
    """
    return (_SeekableRepeated if hasattr(source, "state_before") else _Repeated)(source, times)


class _Repeated:
    """Host iterator that returns each batch several times; see `HostIterator`. A position has the batch if needed."""

    def __init__(self, source: HostIterator, times: int):
        self._source, self._times = source, times
        self._count = self._restored = 0
        self._batch: HostBatch = {}
        inner: Callable[[int], Mapping[str, Any]] = getattr(source, "metrics", lambda batches: {})
        self.metrics = lambda batches: inner(-(-(self._restored + batches) // times) - self._restored // times)

    def __next__(self) -> HostBatch:
        if self._count % self._times == 0:
            self._batch = next(self._source)
        self._count += 1
        return self._batch

    def state(self) -> bytes:
        pending = [self._batch] if self._count % self._times else []
        return self._count.to_bytes(_HEADER_BYTES) + pack(self._source.state(), pending)

    def restore(self, state: bytes) -> None:
        position, pending = unpack(state[_HEADER_BYTES:])
        self._source.restore(position)
        self._count = self._restored = int.from_bytes(state[:_HEADER_BYTES])
        self._batch = pending[0] if pending else {}


class _SeekableRepeated(_Repeated):
    """The same for a `SeekableIterator`, whose positions have no batches."""

    _source: SeekableIterator

    def state(self) -> bytes:
        return self.state_before(0)

    def state_before(self, batches: int) -> bytes:
        """Returns the position of the source before the batch that is next, or that is to be returned again."""
        count = self._count - batches
        position = self._source.state_before(-(-self._count // self._times) - count // self._times)
        return count.to_bytes(_HEADER_BYTES) + position

    def restore(self, state: bytes) -> None:
        self._source.restore(state[_HEADER_BYTES:])
        self._count = self._restored = int.from_bytes(state[:_HEADER_BYTES])
        self._batch = next(self._source) if self._count % self._times else {}
