"""What a position in a SeqIO pipeline belongs to: the settings that must be equal on restoring, and the versions."""

import hashlib
from typing import Any

import seqio
import tensorflow as tf

from t5x_like.data.features import FeatureSpec
from t5x_like.data.seqio_feed.task_access import NEXT_FIT, TaskAccess


def of_pipeline(source: TaskAccess, spec: FeatureSpec, *, process_index: int, process_count: int) -> dict[str, Any]:
    """Returns the settings that must be equal for a position to have the same meaning.

    Args:
      source: The task or mixture.
      spec: Features that the objective reads.
      process_index: Index of this process.
      process_count: Number of processes.
    """
    identity = {
        "task": source.mixture_or_task_name,
        "split": source.split,
        "lengths": spec.task_lengths(source.task_feature_lengths),
        "batch_size": source.batch_size,
        "shuffle": source.shuffle,
        "pack": source.pack,
        "seed": source.seed,
        "use_cached": source.use_cached,
        "num_epochs": source.num_epochs,
        "process_count": process_count,
        "process_index": process_index,
    }
    if source.packing != NEXT_FIT:
        identity["packing"] = source.packing
    if fractions := source.mixing_fractions():
        identity["rates"] = fractions
    if spec.separator is not None:
        identity["separator"] = spec.separator
    return identity | ({"continuous": True} if source.continuous else {})


def versions(source: TaskAccess) -> dict[str, str]:
    """Returns the versions of the libraries, and a hash of the descriptions of the corpora, with their contents."""
    lines = [task.source.describe() for task in source.tasks if hasattr(task.source, "describe")]
    corpus = hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()
    return {"tensorflow": tf.__version__, "seqio": seqio.__version__, "corpus": corpus}
