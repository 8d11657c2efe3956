"""Counts bytes that are not UTF-8 and carriage returns in a task's source, before any preprocessor."""

import dataclasses

import tensorflow as tf

from t5x_like.data.seqio_feed.task_access import TaskAccess


@dataclasses.dataclass
class ByteCounts:
    """Counts over the text features of some examples.

    Attributes:
      examples: number of examples.
      undecodable: bytes that are not valid UTF-8.
      carriage_returns: carriage returns.
    """

    examples: int = 0
    undecodable: int = 0
    carriage_returns: int = 0

    def problems(self) -> list[str]:
        """Returns what is wrong with the bytes, each with advice."""
        found = []
        if self.undecodable:
            found.append(
                f"{self.undecodable:,} bytes of the first {self.examples:,} examples of the source are not UTF-8. "
                "They become replacement characters or unknown tokens, or their documents are skipped. Convert the "
                "files, for example with `iconv -f latin1 -t utf8`."
            )
        if self.carriage_returns:
            found.append(
                f"{self.carriage_returns:,} carriage returns (␍) in the first {self.examples:,} examples of the "
                "source, probably Windows line endings, which the model would learn. Remove them from the files."
            )
        return found


def count_bytes(source: TaskAccess, sample: int) -> ByteCounts:
    """Counts bytes in the text features of the first examples of each task's source.

    Args:
      source: task or mixture, and split.
      sample: maximum number of examples per task.
    """
    counts = ByteCounts()
    for task in source.tasks:
        if source.use_cached or source.split not in task.splits:
            continue
        ds = task.source.get_dataset(split=source.split, shuffle=False).take(sample)
        if not any(getattr(spec, "dtype", None) == tf.string for spec in tf.nest.flatten(ds.element_spec)):
            continue
        for example in ds:
            counts.examples += 1
            for value in tf.nest.flatten(example, expand_composites=True):
                for text in tf.reshape(value, [-1]).numpy().tolist() if value.dtype == tf.string else ():
                    # Bytes that cannot be decoded become lone surrogates.
                    decoded = text.decode("utf-8", errors="surrogateescape")
                    counts.undecodable += sum("\udc80" <= character <= "\udcff" for character in decoded)
                    counts.carriage_returns += text.count(b"\r")
    return counts
