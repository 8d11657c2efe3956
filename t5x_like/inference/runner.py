"""Computes the results of examples in batches of similar length, by one or several processes."""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from t5x_like import partitioning
from t5x_like.data import buckets
from t5x_like.inference.examples import NO_PREDICTION, Example, Examples, Fields
from t5x_like.inference.predictors import Computation
from t5x_like.runtime import distributed

Result = tuple[Example, Any]


class Runner:
    """Computes results with parameters. A program is compiled once per length of a batch.

    Args:
      predictor: What is computed, such as a `Predictor` whose `examples` have been called.
      params: Its parameters.
      partitioner: Device mesh and sharding rules.
      batch_size: Rows per batch, rounded up to a multiple of the shards of a batch.
      seed: Seed of sampling.

    Attributes:
      lengths: Lengths of the batches so far -> their number.
      shard: Index of the shard of the rows that this process computes, and the number of shards.
    """

    def __init__(
        self,
        predictor: Computation,
        params: Any,
        partitioner: partitioning.Partitioner,
        batch_size: int,
        seed: int = 0,
    ):
        self._params, self._partitioner, self._key = params, partitioner, jax.random.key(seed)
        # Every process gets the results of all rows.
        self._compute = partitioner.jit(predictor.compute, out_shardings=partitioner.replicated)
        shards = partitioner.axis_size("batch")
        self.shard = partitioner.feed_shard
        self._rows = -(-batch_size // shards) * shards // self.shard[1]
        self.lengths: collections.Counter[int] = collections.Counter()

    def run(self, examples: Examples, start: int, stop: int, on_batch: Callable[[float, int], None]) -> list[Result]:
        """Computes the results of some records. With several processes, each one calls it with records of its own.

        Args:
          examples: The examples of the records.
          start: Index of the first record.
          stop: Index after the last record.
          on_batch: Called after each batch with its share of the records and the number of tokens of its results.

        Returns:
          The examples with their results, in the order of the records.

        Raises:
          UserError: A record is invalid.
          RunFailed: Another process has failed.
        """
        found: list[Example] = []

        def read() -> list[int]:
            found.extend(examples.read(start, stop))
            # The longest first: if memory does not suffice, the first batch fails.
            found.sort(key=lambda example: -example.length)
            return [example.length for example in found[:: self._rows]]

        # The programs of all processes have the same shapes.
        of_processes = distributed.compute_everywhere(read)
        lengths = [max(of_batch) for of_batch in _transposed(of_processes)]
        results: list[Result] = []
        for of_batch in self._batches(examples, found, lengths):
            results += of_batch
            on_batch(1 / len(lengths), examples.tokens(of_batch))
        return sorted(results, key=lambda result: result[0].record)

    def _batches(self, examples: Examples, found: Sequence[Example], lengths: Sequence[int]) -> Iterator[list[Result]]:
        """Yields the results of each batch. The next batch is prepared while the devices compute."""
        waiting: tuple[Sequence[Example], Any] | None = None
        for number, length in enumerate(lengths):
            chunk = found[number * self._rows : (number + 1) * self._rows]
            distributed.heartbeat("the results of a batch")
            computed = self._start(examples, chunk, length)
            if waiting is not None:
                yield self._finish(*waiting)
            waiting = chunk, computed
        if waiting is not None:
            yield self._finish(*waiting)

    def _start(self, examples: Examples, chunk: Sequence[Example], length: int) -> Any:
        length = buckets.bucket(length, examples.longest, self._partitioner.axis_size(partitioning.LENGTH))
        self.lengths[length] += 1
        batch = examples.batch(chunk, self._rows, length)
        ids = [example.record for example in chunk] or [0]
        ids += ids[-1:] * (self._rows - len(ids))
        batch = self._partitioner.put_batch(batch, examples.axes)
        (example_ids,) = self._partitioner.put_batch({"example_ids": np.array(ids, np.int32)}).values()
        return self._compute(self._params, batch, example_ids, self._key)

    def _finish(self, chunk: Sequence[Example], computed: Any) -> list[Result]:
        on_host = jax.device_get(computed)
        first = self.shard[0] * self._rows
        return [
            (example, jax.tree.map(lambda x, row=first + row: x[row], on_host)) for row, example in enumerate(chunk)
        ]


def fields_of(runner: Runner, examples: Examples, count: int) -> tuple[list[Fields], int]:
    """Computes the results of records in memory.

    Args:
      runner: Computes the results.
      examples: The examples of the records.
      count: Number of records.

    Returns:
      The output fields of each record, and the number of tokens that they have cost.
    """
    results = runner.run(examples, 0, count, lambda *_: None)
    fields = examples.fields(results)
    return [fields.get(index, NO_PREDICTION) for index in range(count)], examples.tokens(results)


def _transposed(lengths: Sequence[Sequence[int]]) -> list[list[int]]:
    """Returns the lengths of each batch in the processes that have it."""
    return [
        [each[number] for each in lengths if number < len(each)] for number in range(max(map(len, lengths), default=0))
    ]
