"""The prefetching feed: order, position, errors of its thread, and closing."""

import time

import numpy as np
import pytest

from t5x_like.data import blocked
from t5x_like.data.feed import DataMismatchError, Feed, PrefetchingFeed

pytestmark = pytest.mark.notf


class Counter:
    """Host iterator over `[2, 3]` arrays of 1, 2, …; each batch takes `seconds`."""

    def __init__(self, end=None, seconds=0.0):
        self.position, self.end, self.seconds = 0, end, seconds

    def __next__(self):
        time.sleep(self.seconds)
        if self.position == self.end:
            raise StopIteration
        self.position += 1
        return {"x": np.full((2, 3), self.position, np.int32), "y/z": np.arange(self.position)}

    def state(self):
        return f"at {self.position}\n".encode()

    def restore(self, state):
        self.position = int(state.split()[1])


def put(batch):
    return {name: array + 0.5 for name, array in batch.items()}


def numbers(feed, count):
    return [float(next(feed)["x"][0, 0]) for _ in range(count)]


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.002)


@pytest.fixture
def feeds():
    made = []

    def make(*args, **kwargs):
        made.append(PrefetchingFeed(*args, **kwargs))
        return made[-1]

    yield make
    for feed in made:
        feed.close()


def test_prefetching_feed_satisfies_the_protocol(feeds):
    assert isinstance(feeds(Counter(), put), Feed)


def test_restore_from_other_data_raises_and_keeps_the_position(feeds):
    class Other(Counter):
        def restore(self, state):
            raise DataMismatchError("batch_size was 8, is 4")

    position = feeds(Counter(), put).state()
    feed = feeds(Other(), put)
    wait_until(lambda: len(feed._ready) == 2)
    with pytest.raises(DataMismatchError, match="batch_size was 8"):
        feed.restore(position)
    assert numbers(feed, 4) == [1.5, 2.5, 3.5, 4.5]


def test_batches_are_in_order_and_passed_through_put(feeds):
    assert numbers(feeds(Counter(), put), 5) == [1.5, 2.5, 3.5, 4.5, 5.5]


def test_prefetch_limits_the_batches_read_ahead(feeds):
    source = Counter()
    feed = feeds(source, put, prefetch=3)
    wait_until(lambda: source.position == 3)
    time.sleep(0.05)
    assert source.position == 3
    numbers(feed, 2)
    wait_until(lambda: source.position == 5)


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_state_is_the_position_after_the_last_returned_batch(feeds, prefetch):
    source = Counter()
    feed = feeds(source, put, prefetch=prefetch)
    assert numbers(feed, 4) == [1.5, 2.5, 3.5, 4.5]
    wait_until(lambda: source.position == 4 + prefetch)
    state = feed.state()
    expected = [next(feed) for _ in range(8)]

    resumed = feeds(Counter(), put, prefetch=prefetch)
    resumed.restore(state)
    for batch in expected:
        again = next(resumed)
        assert set(again) == {"x", "y/z"}
        for name in again:
            np.testing.assert_array_equal(again[name], batch[name])


def test_state_while_the_thread_reads_a_batch(feeds):
    feed = feeds(Counter(seconds=0.02), put)
    for position in range(1, 6):
        numbers(feed, 1)
        resumed = feeds(Counter(), put)
        resumed.restore(feed.state())
        assert numbers(resumed, 2) == [position + 1.5, position + 2.5]


def test_state_before_the_first_and_after_the_last_batch(feeds):
    feed = feeds(Counter(end=2), put)
    start = feed.state()
    assert numbers(feed, 2) == [1.5, 2.5]
    with pytest.raises(StopIteration):
        next(feed)
    end = feed.state()
    feed.restore(start)
    assert numbers(feed, 2) == [1.5, 2.5]
    feed.restore(end)
    with pytest.raises(StopIteration):
        next(feed)


def test_errors_of_the_thread_are_raised_after_the_batches_before_them(feeds):
    def put_two(batch):
        if batch["x"][0, 0] == 3:
            raise ValueError("the third batch failed")
        return batch

    feed = feeds(Counter(), put_two)
    assert numbers(feed, 2) == [1, 2]
    for _ in range(2):
        with pytest.raises(ValueError, match="the third batch failed"):
            next(feed)


def test_wait_seconds_measures_slow_iterators(feeds):
    slow, fast = feeds(Counter(seconds=0.05), put), feeds(Counter(), put)
    numbers(slow, 4)
    assert slow.wait_seconds >= 0.15
    wait_until(lambda: len(fast._ready) == 2)
    numbers(fast, 2)
    assert fast.wait_seconds < 0.05


def test_close_stops_the_thread_and_may_be_repeated(feeds):
    feed = feeds(Counter(), put)
    numbers(feed, 1)
    feed.close()
    feed.close()
    assert not feed._thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        next(feed)


def test_invalid_state_or_prefetch_raises(feeds):
    with pytest.raises(ValueError, match="not a position in a feed"):
        feeds(Counter(), put).restore(b"at 3")
    with pytest.raises(ValueError, match="prefetch=0"):
        PrefetchingFeed(Counter(), put, prefetch=0)


def test_batch_that_is_waited_for_is_reported(feeds, caplog, monkeypatch):
    monkeypatch.setattr(blocked, "SECONDS", 0.05)
    feed = feeds(Counter(seconds=0.2), put, name="a_task")
    assert numbers(feed, 1) == [1.5]
    assert "a_task: no data for 0 s, still waiting. Its source or a preprocessor blocks" in caplog.text
