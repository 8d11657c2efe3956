"""Describes a task or mixture and its rows in lines of text."""

from t5x_like.data import mixing
from t5x_like.data.seqio_feed.task_access import NEXT_FIT, TaskAccess


def lines(source: TaskAccess) -> list[str]:
    """Returns a line for the task, and one for each corpus that describes itself."""
    lengths = ", ".join(f"{name} {length}" for name, length in source.task_feature_lengths.items())
    ids = max(vocabulary.vocab_size for vocabulary in source.vocabularies().values())
    packed = "packed" if source.packing == NEXT_FIT else f"packed by {source.packing.replace('_', ' ')}"
    rows = "continuous" if source.continuous else packed if source.pack else "one example per row"
    mixture = source.mixing_fractions()
    return [
        f"data: {source.mixture_or_task_name}, split {source.split}, lengths {lengths}, batches of {source.batch_size} "
        f"rows, {rows}, seed {source.seed}, {ids:,} token ids",
        *([mixing.describe(mixture, source.name)] if mixture else []),
        *(task.source.describe() for task in source.tasks if hasattr(task.source, "describe")),
    ]
