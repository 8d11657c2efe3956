"""Computes and writes the results of records in windows, so that an interrupted command resumes."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import logging

from t5x_like.inference.examples import Examples, Fields
from t5x_like.inference.output import Output, Range
from t5x_like.inference.part_files import PartFiles
from t5x_like.inference.progress import Progress
from t5x_like.inference.runner import Runner
from t5x_like.runtime import distributed

# Records are read, sorted by length and written in windows of this many batches.
_BATCHES_PER_WINDOW = 16

# Makes a row of the output from the index of a record and the fields of its results; None if it has no example.
MakeRow = Callable[[int, Fields | None], Mapping[str, Any]]


def open_output(output: Output, records: int, batch_size: int, fingerprint: str) -> list[Range]:
    """Opens the output, and returns the windows that an interrupted command has not written.

    Args:
      output: Where the rows are written.
      records: Number of records.
      batch_size: Examples per batch.
      fingerprint: Description of everything that the results depend on.

    Returns:
      Ranges of records, the same in every process.

    Raises:
      UserError: The output cannot be written, or has unfinished rows of another command.
    """
    size = batch_size * _BATCHES_PER_WINDOW
    ranges = [(start, min(start + size, records)) for start in range(0, records, size)]

    def missing() -> list[Range]:
        output.open(fingerprint)
        return output.missing(ranges)

    found = distributed.compute_in_main(missing)
    if isinstance(output, PartFiles):
        distributed.check_agreement(output.directory, fingerprint, "OUTPUT_PATH")
    return [(start, stop) for start, stop in found]


def write_results(
    runner: Runner, examples: Examples, records: int, ranges: list[Range], output: Output, make_row: MakeRow
) -> int:
    """Computes and writes ranges of records, of which each process takes a block, completes the output and logs totals.

    Args:
      runner: Computes the results.
      examples: The examples of the records.
      records: Number of records.
      ranges: Result of `open_output`.
      output: Where the rows are written.
      make_row: Makes the row of a record.

    Returns:
      Number of records in `ranges` that have no example.
    """
    (shard, shards), is_main = runner.shard, jax.process_index() == 0
    # Processes between which the mesh splits only tensors compute the same rows; one of them writes.
    is_writer = distributed.compute_everywhere(lambda: shard).index(shard) == jax.process_index()
    total, dropped = sum(stop - start for start, stop in ranges), 0
    with Progress(records, records - total, enabled=is_main) as progress:
        for start, stop in ranges:
            first, last = (start + (stop - start) * each // shards for each in (shard, shard + 1))

            def on_batch(fraction: float, tokens: int, size: int = stop - start) -> None:
                progress.advance(fraction * size, tokens * shards)

            fields = examples.fields(runner.run(examples, first, last, on_batch))
            dropped += last - first - len(fields)
            rows = [make_row(index, fields.get(index)) for index in range(first, last)]
            distributed.compute_everywhere(lambda: output.write(first, rows) if is_writer else None)  # noqa: B023
        counts = distributed.compute_everywhere(lambda: [progress.tokens // shards, dropped] if is_writer else [0, 0])
        tokens, dropped = map(sum, zip(*counts, strict=True))
    examples.report()
    if is_main:
        logging.info("%s", progress.summary(total, tokens, runner.lengths))
    distributed.compute_in_main(output.finish)
    return dropped
