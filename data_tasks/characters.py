"""Characters of one text file, as nanoGPT reads tiny Shakespeare: each character is a token, the first 90 % train.

    task_arguments = {"path": "tinyshakespeare/input.txt"}

The ids are 3 and up, one for every character that the file has, in the order of their code points; 0, 1 and 2 are
padding, EOS and unknown. The text is read into memory once, by every process.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import fsspec
import seqio
import tensorflow as tf

from data_tasks.documents import TRAIN, VALIDATION, Corpus
from t5x_like import paths
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

TASK = "characters_causal_lm"
EOS_ID, UNKNOWN_ID, FIRST_CHARACTER_ID = 1, 2, 3
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class CharacterVocabulary(seqio.Vocabulary):
    """One id a character, of those that a text has. The text is asked for when the ids are."""

    def __init__(self, characters: Callable[[], str], extra_ids: int = 0):
        """Args:
        characters: gives them, in the order of their code points, which is that of their ids.
        extra_ids: sentinels after them.
        """
        self._characters = characters
        super().__init__(extra_ids=extra_ids)

    @property
    def bos_id(self) -> None:
        return None

    @property
    def eos_id(self) -> int:
        return EOS_ID

    @property
    def unk_id(self) -> int:
        return UNKNOWN_ID

    @property
    def _base_vocab_size(self) -> int:
        return FIRST_CHARACTER_ID + len(self._characters())

    def _encode(self, s: str) -> list[int]:
        ids = {character: FIRST_CHARACTER_ID + index for index, character in enumerate(self._characters())}
        return [ids.get(character, UNKNOWN_ID) for character in s]

    def _decode(self, ids: Sequence[int]) -> str:
        known = self._characters()
        shown = (REPLACEMENT if i == UNKNOWN_ID else known[i - FIRST_CHARACTER_ID] for i in ids if i >= UNKNOWN_ID)
        return "".join(shown)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        known = tf.constant([ord(character) for character in self._characters()], tf.int32)
        points = tf.strings.unicode_decode(s, "UTF-8")
        index = tf.minimum(tf.searchsorted(known, points), tf.size(known) - 1)
        return tf.where(tf.gather(known, index) == points, FIRST_CHARACTER_ID + index, UNKNOWN_ID)

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        characters = tf.constant(["", "", REPLACEMENT, *self._characters()])
        return tf.strings.reduce_join(tf.gather(characters, ids), axis=-1)

    def __eq__(self, other) -> bool:
        return (
            isinstance(other, CharacterVocabulary)
            and self.extra_ids == other.extra_ids
            and (self._characters is other._characters or self._characters() == other._characters())
        )

    __hash__ = None


class ContiguousSource(seqio.DataSource):
    """The passes over a split that is one text, an example each: whether in order, the seed, and the reader's share.

    The text itself is not in the examples, so an iterator's state stays small; `windows` cuts it.
    """

    def __init__(self, read: Callable[[], Corpus]):
        """Args:
        read: gives the corpus, one document a split; called each time, so it should remember what it has read.
        """
        self._read = read
        super().__init__(splits=(TRAIN, VALIDATION))

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return True

    def list_shards(self, split: str) -> Sequence[str]:
        return [split]

    def num_input_examples(self, split: str) -> int:
        return len(self._read().splits[split])

    def describe(self) -> str:
        """One line about the text; reads it."""
        return self._read().describe()

    def get_dataset(self, split=TRAIN, shuffle=True, seed=None, shard_info=None, **_) -> tf.data.Dataset:
        corpus = self._read()
        if split not in corpus.splits:
            raise UserError(f"{corpus.name} has no split {split!r}; it has {', '.join(corpus.splits)}")
        index, count = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        passes = tf.data.Dataset.random(seed, rerandomize_each_iteration=True).take(1)
        return passes.map(
            lambda drawn: {
                "split": tf.constant(split),
                "shuffle": tf.constant(shuffle),
                "seed": tf.stack([drawn, drawn // 2**31]),
                "share": tf.constant([index, count], tf.int64),
            }
        )


def windows(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    read: Callable[[], Corpus],
) -> tf.data.Dataset:
    """Cuts each pass over a text into windows that lie side by side.

    In order they begin with the text, and the last one is short. Shuffled, each pass begins them at another place, so
    that in time they begin everywhere, and goes through those that are whole in another order.

    Args:
      ds: passes, from `ContiguousSource`.
      sequence_length: tokens of `targets`, the length of a window.
      output_features: `targets`.
      read: gives the corpus.

    Returns:
      Examples with `targets`, int32.

    Raises:
      UserError: there is no length of `targets`.
    """
    if sequence_length is None or "targets" not in sequence_length:
        raise UserError(f"windows of characters need TASK_FEATURE_LENGTHS of 'targets', not {sequence_length}")
    length = tf.constant(sequence_length["targets"], tf.int64)
    vocabulary = output_features["targets"].vocabulary
    splits = {split: tf.constant(b"".join(documents)) for split, documents in read().splits.items()}

    def cut(reading):
        text = tf.where(reading["split"] == TRAIN, splits[TRAIN], splits[VALIDATION])
        tokens = tf.cast(vocabulary.encode_tf(text), tf.int32)
        total, seed = tf.size(tokens, tf.int64), reading["seed"]
        begins = tf.clip_by_value(total - length + 1, 1, length)
        drawn = tf.random.stateless_uniform([], seed, 0, begins, dtype=tf.int64)
        offset = tf.where(reading["shuffle"], drawn, 0)
        whole = tf.maximum((total - offset) // length, 1)
        count = tf.where(reading["shuffle"], whole, -(-total // length))

        def window(index):
            shuffled = tf.random.experimental.index_shuffle(index, seed, count - 1)
            start = offset + length * tf.where(reading["shuffle"], shuffled, index)
            return {"targets": tokens[start : start + length]}

        share = reading["share"]
        return tf.data.Dataset.range(share[0], count, share[1]).map(window)

    return ds.flat_map(cut)


@functools.lru_cache(maxsize=2)
def read(path: str, validation_fraction: float = 0.1) -> Corpus:
    """Reads a text file as one document a split: the beginning trains, the end validates.

    Args:
      path: of a UTF-8 text file, local or in a bucket.
      validation_fraction: how much of the characters is held out, at the end.

    Raises:
      UserError: no path was given, a split would be empty, or the file is not UTF-8.
      UserError: there is no such file.
    """
    if not path:
        raise UserError("characters are read from one file: give task_arguments {'path': 'path/to/input.txt'}")
    with paths.explain_path_errors("task_arguments path", path), fsspec.open(path, "rb") as file:
        raw = file.read()
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}") from error
    train = int(len(text) * (1 - validation_fraction))
    if not 0 < train < len(text):
        raise UserError(f"{path}: validation_fraction={validation_fraction} of {len(text)} characters leaves no split")
    splits = {TRAIN: [text[:train].encode()], VALIDATION: [text[train:].encode()]}
    return Corpus(name="characters", splits=splits, origin=path, skipped={})


def add_characters_task(name: str) -> seqio.Task:
    """A task whose `targets` are windows of characters of the file that its task argument `path` names.

    With the features `NEXT_TOKEN` a model predicts each character of a window but the first: give `targets` one more
    than the context.

    Args:
      name: to register it under.
    """
    values = task_arguments.declare(
        name,
        # A text file, local or in a bucket (any fsspec path).
        path="",
        # How much of it is held out, at its end.
        validation_fraction=0.1,
    )

    def current() -> Corpus:
        return read(**values)

    def known() -> str:
        return _characters_of(**values)

    return seqio.TaskRegistry.add(
        name,
        source=ContiguousSource(current),
        preprocessors=[functools.partial(windows, read=current)],
        output_features={"targets": seqio.Feature(CharacterVocabulary(known))},
        shuffle_buffer_size=1,  # the source has shuffled all there is
    )


@functools.lru_cache(maxsize=2)
def _characters_of(path: str, validation_fraction: float) -> str:
    texts = (
        document.decode() for documents in read(path, validation_fraction).splits.values() for document in documents
    )
    return "".join(sorted(set().union(*texts)))


add_characters_task(TASK)
