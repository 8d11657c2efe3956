"""Compares the live feed with a cache: packed tokens a second and core, of T5's span corruption over text files.

python benchmarks/feeds.py FILES VOCABULARY [SECONDS]

FILES is a pattern of .txt or .jsonl files, VOCABULARY a SentencePiece model. A core's second is one of CPU time, of all
threads together, so that a busy machine changes little.
"""

import itertools
import sys
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
# Enough for a cache of a usual size: Grain takes longer to find places in the order of less than 2**16 rows.
EXAMPLES = 50_000
OBJECTIVE = SequenceToSequence()


def tokens(batch: dict[str, np.ndarray]) -> int:
    """How many places of a batch are no padding."""
    return sum(int((batch[name] > 0).sum()) for name in OBJECTIVE.features.segment_features)


def measure(name: str, batches: Iterator[dict[str, np.ndarray]], seconds: float) -> None:
    """Reads for a while, after a first part that is not counted."""
    for _ in itertools.islice(batches, 8):
        pass
    wall, cpu, count, rows = time.perf_counter(), time.process_time(), 0, 0
    while time.perf_counter() - wall < seconds:
        batch = next(batches)
        count, rows = count + tokens(batch), rows + BATCH_SIZE
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(
        f"{name:24} {count / cpu:12,.0f} tokens/s a core  {cpu / rows * 1e6:9,.1f} us a row  "
        f"({cpu:.1f} s of CPU in {wall:.1f} s)"
    )


def main(files: str, vocabulary: str, seconds: float = 20.0) -> None:
    live = SeqIOSource(
        mixture_or_task_name="text_files_span_corruption",
        task_feature_lengths=LENGTHS,
        batch_size=BATCH_SIZE,
        task_arguments={"pattern": files, "vocabulary_path": vocabulary},
    )
    with tempfile.TemporaryDirectory() as folder:
        written = cache(data=live, objective=OBJECTIVE, cache_dir=folder, examples=EXAMPLES, processes=2)
        size = sum(shard.size for shard in written["train"].shards)
        rows = sum(written["train"].rows_of_passes)
        Console().print(f"a row of the cache: {size / rows:,.0f} bytes on disk")
        cached = CachedSource(cache_dir=folder, batch_size=BATCH_SIZE)
        measure("cached", cached.host_iterator(OBJECTIVE.features), seconds)
    measure("live", live.host_iterator(OBJECTIVE.features), seconds)  # last: TensorFlow keeps threads


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:4]))
