"""SeqIO sources of documents that are held in memory, with splitting and shuffling."""

import dataclasses
import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import seqio
import tensorflow as tf

from t5x_like.data import endless
from t5x_like.errors import UserError

TRAIN, VALIDATION = "train", "validation"
# Only one thread reads at a time: sources share a corpus, and training, evaluation and `--dry_run` request it from
# different threads before `read` has cached it. CPython 3.11's `ast.parse` may also fail when two threads call it.
_READ_LOCK = threading.RLock()
TEXT = "text"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents and their metadata.

    Attributes:
      name: the name used in messages.
      splits: UTF-8 documents by split, in a fixed order.
      origin: a short description of where the documents come from.
      skipped: number of skipped documents by reason.
    """

    name: str
    splits: Mapping[str, Sequence[bytes]]
    origin: str
    skipped: Mapping[str, int]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of all documents, their splits and their order."""
        digest = hashlib.blake2b(digest_size=8)
        for split, documents in self.splits.items():
            digest.update(f"{split} {len(documents)}".encode())
            for document in documents:
                digest.update(len(document).to_bytes(8, "little"))
                digest.update(document)
        return digest.hexdigest()

    def describe(self) -> str:
        """Returns one line with counts, size, hash, origin and skipped documents."""
        counts = ", ".join(f"{len(documents):,} {split}" for split, documents in self.splits.items())
        size = sum(len(document) for documents in self.splits.values() for document in documents)
        skipped = ", ".join(f"{count:,} {reason}" for reason, count in self.skipped.items() if count)
        return f"{self.name}: documents {counts}; {size / 1e6:.2f} MB, hash {self.fingerprint}, from {self.origin}" + (
            f"; skipped: {skipped}" if skipped else ""
        )


def split_by_hash(documents: Iterable[bytes], validation_fraction: float) -> dict[str, list[bytes]]:
    """Splits documents into train and validation by a hash of their text.

    The split of a document depends only on its own text, so adding documents does not move others.

    Args:
      documents: UTF-8 documents.
      validation_fraction: expected fraction of validation documents.

    Returns:
      Documents by split.

    Raises:
      UserError: the fraction is not at least 0 and less than 1.
    """
    if not 0 <= validation_fraction < 1:
        raise UserError(f"validation_fraction={validation_fraction} is out of range. Give a fraction in [0, 1).")
    splits: dict[str, list[bytes]] = {TRAIN: [], VALIDATION: []}
    for document in documents:
        splits[VALIDATION if held_out(document, validation_fraction) else TRAIN].append(document)
    return splits


def held_out(document: bytes, fraction: float) -> bool:
    """Returns whether a document belongs to the held-out fraction, by a hash of its text."""
    return int.from_bytes(hashlib.blake2b(document, digest_size=4).digest()) / 2**32 < fraction


class DocumentSource(seqio.DataSource):
    """The documents of a corpus as the feature `text`. The corpus is read when a dataset is first requested.

    Shuffling draws a new permutation of all documents in every epoch. The permutation is computed index by index, so
    the state of an iterator holds no buffer of documents.

    Args:
      read: returns the corpus. It is called often, so it should cache the corpus.
    """

    def __init__(self, read: Callable[[], Corpus]):
        self._read_unlocked = read
        super().__init__(splits=(TRAIN, VALIDATION))

    def _read(self) -> Corpus:
        with _READ_LOCK:
            return self._read_unlocked()

    @property
    def supports_arbitrary_sharding(self) -> bool:
        """True: documents can be distributed over any number of shards."""
        return True

    def list_shards(self, split: str) -> Sequence[str]:
        """Returns the split as the only shard."""
        return [split]

    def num_input_examples(self, split: str) -> int:
        """Returns the number of documents of a split."""
        return len(self._read().splits[split])

    def describe(self) -> str:
        """Returns one line about the corpus; reads it."""
        return self._read().describe()

    @tf.autograph.experimental.do_not_convert
    def get_dataset(self, split=TRAIN, shuffle=True, seed=None, shard_info=None, **_) -> tf.data.Dataset:
        """Returns the documents of a split; see `seqio.DataSource`."""
        corpus = self._read()
        if split not in corpus.splits:
            raise UserError(f"{corpus.name}: split {split!r} not found. Give one of {', '.join(corpus.splits)}.")
        documents = corpus.splits[split]
        if not documents:
            raise UserError(
                f"the split {split!r} is empty: {corpus.describe()}. Give more documents, or "
                "hold out another fraction of them (validation_fraction in TASK_ARGUMENTS)."
            )
        texts = tf.constant(documents)
        # Slices need no call of a function per document.
        ds = shuffled_indices(len(documents), seed) if shuffle else tf.data.Dataset.from_tensor_slices({TEXT: texts})
        if shard_info is not None and shard_info.num_shards > 1:
            ds = ds.shard(shard_info.num_shards, shard_info.index)
        return ds.map(lambda index: {TEXT: texts[index]}) if shuffle else ds


def shuffled_indices(count: int, seed: int | None) -> tf.data.Dataset:
    """Permutes 0 … count - 1 differently each time the dataset is iterated; again and again if it is endless."""

    def permutation(epoch_seed):
        key = tf.stack([epoch_seed, epoch_seed // 2**31])
        return tf.data.Dataset.range(count).map(
            lambda index: tf.random.experimental.index_shuffle(index, key, tf.constant(count - 1, tf.int64))
        )

    return epoch_seeds(seed).flat_map(permutation)


def epoch_seeds(seed: int | None) -> tf.data.Dataset:
    """Returns the seed of an epoch, another one at each iteration of the dataset; of all epochs if it is endless."""
    seeds = tf.data.Dataset.random(seed, rerandomize_each_iteration=True)
    return seeds if endless.is_endless() else seeds.take(1)
