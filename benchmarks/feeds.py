"""Compares live and cached input: packed tokens per second and core of T5's span corruption over text files.

    python benchmarks/feeds.py 'books/*.txt' t5.model

Rates are per second of CPU time, summed over all threads, so that other load on the machine has little effect.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from rich.console import Console

from t5x_like.cache import cache
from t5x_like.data.cached import CachedSource
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

LENGTHS = {"inputs": 512, "targets": 114}
BATCH_SIZE = 128
# Enough rows for a realistic cache: Grain computes shuffled positions more slowly for fewer than 2**16 rows.
EXAMPLES = 50_000
OBJECTIVE = SequenceToSequence()


def tokens(batch: dict[str, np.ndarray]) -> int:
    """Returns the number of positions in a batch that are not padding."""
    return sum(int((batch[name] > 0).sum()) for name in OBJECTIVE.features.segment_features)


def measure(name: str, batches: Iterator[dict[str, np.ndarray]], seconds: float) -> None:
    """Prints the rate of reading batches, after a warm-up of 8 batches.

    Args:
      name: Name of the feed.
      batches: The batches to read.
      seconds: Duration of the measurement.
    """
    for _ in itertools.islice(batches, 8):
        pass
    wall, cpu, count, rows = time.perf_counter(), time.process_time(), 0, 0
    while time.perf_counter() - wall < seconds:
        batch = next(batches)
        count, rows = count + tokens(batch), rows + BATCH_SIZE
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"{name:24} {count / cpu:12,.0f} tokens/s per core  {cpu / rows * 1e6:9,.1f} us per row  "
        f"({cpu:.1f} s of CPU in {wall:.1f} s)"
    )


def main() -> None:
    """Measures both feeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", help="pattern of .txt or .jsonl files")
    parser.add_argument("vocabulary", help="SentencePiece model")
    parser.add_argument("seconds", type=float, nargs="?", default=20.0, help="duration per feed (default: 20)")
    arguments = parser.parse_args()
    live = SeqIOSource(
        mixture_or_task_name="text_files_span_corruption",
        task_feature_lengths=LENGTHS,
        batch_size=BATCH_SIZE,
        task_arguments={"pattern": arguments.files, "vocabulary_path": arguments.vocabulary},
    )
    with tempfile.TemporaryDirectory() as directory:
        written = cache(data=live, objective=OBJECTIVE, cache_dir=directory, examples=EXAMPLES, processes=2)
        size = sum(shard.size for shard in written["train"].shards)
        rows = sum(written["train"].rows_of_passes)
        Console().print(f"cached row: {size / rows:,.0f} bytes on disk")
        cached = CachedSource(cache_dir=directory, batch_size=BATCH_SIZE)
        measure("cached", cached.host_iterator(OBJECTIVE.features), arguments.seconds)
    # The live feed is last, because TensorFlow keeps its threads running.
    measure("live", live.host_iterator(OBJECTIVE.features), arguments.seconds)


if __name__ == "__main__":
    main()
