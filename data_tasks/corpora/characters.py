"""Characters of one text file, as nanoGPT reads tiny Shakespeare: each character is a token, the first 90 % train.

    task_arguments = {"path": "tinyshakespeare/input.txt"}

Ids from 3 on are the characters of the file in the order of their code points; 0, 1 and 2 are padding, EOS and unknown.
Every process reads the text into memory once.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import fsspec
import seqio
import tensorflow as tf

from data_tasks.corpora.documents import TRAIN, VALIDATION, Corpus, DocumentSource
from data_tasks.feature_checks import require_lengths
from t5x_like import paths
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

TASK = "characters_causal_lm"
EOS_ID, UNKNOWN_ID, FIRST_CHARACTER_ID = 1, 2, 3
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class CharacterVocabulary(seqio.Vocabulary):
    """A vocabulary with one id per character of a text. The characters are looked up when ids are needed.

    Args:
      characters: returns the characters in the order of their code points, which is also the order of their ids.
      extra_ids: number of sentinels after the characters.
    """

    def __init__(self, characters: Callable[[], str], extra_ids: int = 0):
        self._characters = characters
        super().__init__(extra_ids=extra_ids)

    @property
    def bos_id(self) -> None:
        """None: the vocabulary has no BOS."""
        return None

    @property
    def eos_id(self) -> int:
        """The id of EOS."""
        return EOS_ID

    @property
    def unk_id(self) -> int:
        """The id of characters that the text does not contain."""
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


class ContiguousSource(DocumentSource):
    """A source whose splits are one text each. Its examples describe a pass over the text: seed, order and shard.

    The examples do not hold the text itself, so the state of an iterator stays small. `windows` cuts the text.

    Args:
      read: returns the corpus, with one document per split. It is called often, so it should cache the corpus.
    """

    def get_dataset(self, split=TRAIN, shuffle=True, seed=None, shard_info=None, **_) -> tf.data.Dataset:
        """Returns the passes over a split; see `seqio.DataSource`."""
        corpus = self._read()
        if split not in corpus.splits:
            raise UserError(f"{corpus.name}: split {split!r} not found. Give one of {', '.join(corpus.splits)}.")
        index, count = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        passes = tf.data.Dataset.random(seed, rerandomize_each_iteration=True).take(1)
        return passes.map(
            lambda drawn: {
                "split": tf.constant(split),
                "shuffle": tf.constant(shuffle),
                "seed": tf.stack([drawn, drawn // 2**31]),
                "shard": tf.constant([index, count], tf.int64),
            }
        )


def windows(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    read: Callable[[], Corpus],
) -> tf.data.Dataset:
    """Cuts each pass over a text into adjacent windows.

    Unshuffled windows begin at the start of the text, and the last one is short. When shuffled, each pass begins at
    another random offset, so that windows eventually begin everywhere, and visits the full windows in another order.

    Args:
      ds: passes, from `ContiguousSource`.
      sequence_length: length of `targets`, which is the length of a window, in tokens.
      output_features: `targets`.
      read: returns the corpus.

    Returns:
      Examples with `targets`, int32.

    Raises:
      UserError: the length of `targets` is missing.
    """
    length = tf.constant(require_lengths("a characters task", sequence_length, "targets")["targets"], tf.int64)
    vocabulary = output_features["targets"].vocabulary
    splits = {split: tf.constant(b"".join(documents)) for split, documents in read().splits.items()}

    def cut(reading):
        text = tf.where(reading["split"] == TRAIN, splits[TRAIN], splits[VALIDATION])
        tokens = tf.cast(vocabulary.encode_tf(text), tf.int32)
        total, seed = tf.size(tokens, tf.int64), reading["seed"]
        offsets = tf.clip_by_value(total - length + 1, 1, length)
        drawn = tf.random.stateless_uniform([], seed, 0, offsets, dtype=tf.int64)
        offset = tf.where(reading["shuffle"], drawn, 0)
        full = tf.maximum((total - offset) // length, 1)
        count = tf.where(reading["shuffle"], full, -(-total // length))

        def window(index):
            shuffled = tf.random.experimental.index_shuffle(index, seed, count - 1)
            start = offset + length * tf.where(reading["shuffle"], shuffled, index)
            return {"targets": tokens[start : start + length]}

        shard = reading["shard"]
        return tf.data.Dataset.range(shard[0], count, shard[1]).map(window)

    return ds.flat_map(cut)


@functools.lru_cache(maxsize=2)
def read(path: str, validation_fraction: float = 0.1) -> Corpus:
    """Reads a text file as one document per split: the beginning for training, the end for validation.

    Args:
      path: path of a UTF-8 text file, local or in a bucket.
      validation_fraction: fraction of the characters, at the end of the file, that is held out.

    Returns:
      The corpus.

    Raises:
      UserError: the path is not given, the file does not exist or is not UTF-8, or a split would be empty.
    """
    if not path:
        raise UserError("the characters task needs a text file: give task_arguments {'path': 'path/to/input.txt'}")
    with paths.explain_path_errors("task_arguments path", path), fsspec.open(path, "rb") as file:
        raw = file.read()
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}") from error
    train = int(len(text) * (1 - validation_fraction))
    if not 0 < train < len(text):
        raise UserError(
            f"{path}: validation_fraction={validation_fraction} of {len(text)} characters leaves a split empty"
        )
    splits = {TRAIN: [text[:train].encode()], VALIDATION: [text[train:].encode()]}
    return Corpus(name="characters", splits=splits, origin=path, skipped={})


def add_characters_task(name: str) -> seqio.Task:
    """Registers a task whose `targets` are windows of characters of the file in the task argument `path`.

    With the features `NEXT_TOKEN` a model predicts every character of a window except the first. Set the length of
    `targets` to the context length plus one.

    Args:
      name: the task name.

    Returns:
      The registered task.
    """
    values = task_arguments.declare(
        name,
        # Path of a text file, local or in a bucket (any fsspec path).
        path="",
        # Fraction of the text, at its end, that is held out.
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
        shuffle_buffer_size=1,  # the source shuffles globally
    )


@functools.lru_cache(maxsize=2)
def _characters_of(path: str, validation_fraction: float) -> str:
    texts = (
        document.decode() for documents in read(path, validation_fraction).splits.values() for document in documents
    )
    return "".join(sorted(set().union(*texts)))


add_characters_task(TASK)
