"""Finds splits of a task that have the same examples, so that an evaluation measures memory."""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from t5x_like.data.seqio_feed.task_access import TaskAccess


def equal_splits(source: TaskAccess, sample: int) -> Iterator[tuple[str, str, int]]:
    """Yields the other splits of each task whose first examples, before any preprocessor, equal the split's.

    Args:
      source: task or mixture, and split.
      sample: number of examples to compare per split, in any order.

    Yields:
      Task, the other split, and the number of examples compared.
    """
    for task in source.tasks:
        if source.use_cached or source.split not in task.splits:
            continue
        here = _digests(task, source.split, sample)
        for other in task.splits:
            # Another split may lack its files, which is not a problem of this one.
            with contextlib.suppress(Exception):
                if here and other != source.split and _digests(task, other, sample) == here:
                    yield task.name, other, len(here)


def _digests(task: seqio.Task, split: str, sample: int) -> list[bytes]:
    ds = task.source.get_dataset(split=split, shuffle=False).take(sample)
    return sorted(_digest(example) for example in ds)


def _digest(example: Any) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for value in tf.nest.flatten(example, expand_composites=True):
        found.update(repr(np.asarray(value).tolist()).encode())
    return found.digest()
