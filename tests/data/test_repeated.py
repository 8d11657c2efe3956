"""Batches that are returned several times: every position of a feed restores the same later batches."""

import math

import numpy as np
import pytest

from t5x_like.data import repeated
from t5x_like.data.feed import PrefetchingFeed


class Numbers:
    """A host iterator whose batches are numbered from 1."""

    def __init__(self):
        self.read = 0

    def __next__(self):
        self.read += 1
        return {"x": np.array([self.read])}

    def state(self):
        return b"%d" % self.read

    def restore(self, state):
        self.read = int(state)

    def metrics(self, batches):
        return {"batches": batches}


class Seekable(Numbers):
    def state_before(self, batches):
        return b"%d" % (self.read - batches)


def feed(source):
    return PrefetchingFeed(repeated.host_iterator(source(), 3), lambda batch: batch)


@pytest.mark.parametrize("source", [Numbers, Seekable])
def test_each_position_restores_the_same_later_batches(source):
    expected = [1 + number // 3 for number in range(12)]
    for read in range(8):
        first, second = feed(source), feed(source)
        assert [int(next(first)["x"][0]) for _ in range(read)] == expected[:read]
        second.restore(first.state())
        assert [int(next(second)["x"][0]) for _ in range(12 - read)] == expected[read:]
        assert second.metrics(4) == {"batches": math.ceil((read + 4) / 3) - read // 3}  # since the restored position
        for each in (first, second):
            each.close()
