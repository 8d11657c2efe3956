"""Tagging: the words of a sentence and a tag per word, which the model predicts at the first piece of the word.

Features: `inputs`, `token_types`, and `targets`, aligned with `inputs`: the tag at the first piece of each word, -1 at
all other positions. Words are encoded one by one, as transformers does with `is_split_into_words=True`. Tags follow
IOB2: `B-X` begins an entity of type X, `I-X` continues it, `O` is outside. IOB1, in which `B-X` only separates adjacent
entities, is converted.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

import t5x_like.data.seqio_feed.seqio_interface  # noqa: F401 (the vocabularies are SeqIO's)
from data_tasks.corpora.conll_files import TAGS, WORDS
from data_tasks.downstream import classification, templates, text_to_text
from data_tasks.feature_checks import require_lengths
from data_tasks.metrics.tagging import entity_f1, entity_text_f1
from t5x_like.errors import UserError
from t5x_like.vocabularies.labels import UNKNOWN
from t5x_like.vocabularies.late import LateVocabulary
from t5x_like.vocabularies.template import template_of

OUTSIDE, BEGIN, INSIDE = "O", "B-", "I-"
FIRST_PIECES = "first_pieces"
"""The feature with the position of the first piece of each word in `inputs`, -1 for words that were cut off."""

NO_ENTITIES = "none"
"""The text-to-text target of a sentence without entities."""

_UNEQUAL = "an example has different numbers of words and tags. Give one tag per word."


def encode_words(vocabulary: seqio.Vocabulary, words: tf.Tensor) -> tf.RaggedTensor:
    """Encodes words one by one.

    Args:
      vocabulary: the vocabulary. Byte-level BPE encodes each word with a preceding space, also the first one.
      words: string `[words]`.

    Returns:
      Ids, ragged int32 `[words, (pieces)]`.

    Raises:
      UserError: the vocabulary cannot encode several texts at once.
    """
    if isinstance(vocabulary, LateVocabulary):
        vocabulary = vocabulary.vocabulary
    if isinstance(vocabulary, seqio.ByteVocabulary):
        raise UserError(
            "VOCABULARY_PATH: a ByteVocabulary cannot encode several words at once, which tagging needs. Give a "
            "WordPiece, BPE or SentencePiece vocabulary."
        )
    words = tf.strings.join([getattr(vocabulary, "word_space", ""), words])
    return tf.cast(vocabulary.encode_tf(words), tf.int32)


# ---- tags ------------------------------------------------------------------------------------------------------------


def entity_types(labels: Sequence[str]) -> np.ndarray:
    """Returns the index of the entity type of each tag, from 1; 0 for `O`. int32 `[labels]`."""
    names = [label[2:] if label != OUTSIDE else OUTSIDE for label in labels]
    kinds = [OUTSIDE, *dict.fromkeys(name for name in names if name != OUTSIDE)]
    return np.array([kinds.index(name) for name in names], np.int32)


def begins_entity(tags: tf.Tensor, labels: Sequence[str]) -> tf.Tensor:
    """Returns which words begin an entity: `B-X`, and `I-X` after a word of another type. bool `[words]`."""
    kinds = tf.constant([0, *entity_types(labels)])
    is_begin = tf.constant([False, *(label.startswith(BEGIN) for label in labels)])
    kind = tf.gather(kinds, tags + 1)
    before = tf.pad(kind, [[1, 0]])[:-1]
    return tf.gather(is_begin, tags + 1) | ((kind > 0) & (kind != before))


def to_iob2(ds: tf.data.Dataset, *, labels: Sequence[str]) -> tf.data.Dataset:
    """Converts the tags of each example from IOB1 to IOB2. If there are none, each word has an unknown tag."""
    begin_of = [labels.index(BEGIN + label[2:]) if label != OUTSIDE else index for index, label in enumerate(labels)]
    begin_of = tf.constant([UNKNOWN, *begin_of])

    def converted(example):
        words, tags = example[WORDS], tf.cast(example[TAGS], tf.int32)
        tags = tf.cond(tf.size(tags) == 0, lambda: tf.fill(tf.shape(words), UNKNOWN), lambda: tags)
        tf.debugging.assert_equal(tf.size(tags), tf.size(words), _UNEQUAL)
        return {**example, TAGS: tf.where(begins_entity(tags, labels), tf.gather(begin_of, tags + 1), tags)}

    return ds.map(converted, num_parallel_calls=tf.data.AUTOTUNE)


# ---- token classification --------------------------------------------------------------------------------------------


def fill_words(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
) -> tf.data.Dataset:
    """Replaces the words of each example by `inputs`, `token_types` and `targets`, in the template of the vocabulary.

    Args:
      ds: examples with words, string `[words]`, and tags, int32 `[words]`.
      sequence_length: the length of `inputs`. Pieces beyond it are cut off.
      output_features: `inputs`, whose vocabulary encodes the words.

    Returns:
      Examples with `inputs`, `token_types`, `targets`, `FIRST_PIECES` and the tags.

    Raises:
      UserError: the length is missing or too short, or the vocabulary has no template.
    """
    length = require_lengths("a tagging task", sequence_length, "inputs")["inputs"]
    vocabulary = output_features["inputs"].vocabulary
    template = template_of(vocabulary)
    budget = template.budget(length, pair=False)

    def filled(example):
        pieces, tags = encode_words(vocabulary, example[WORDS]), tf.cast(example[TAGS], tf.int32)
        result = templates.single(template, pieces.flat_values, length)
        starts, sizes = tf.cast(pieces.row_starts(), tf.int32), tf.cast(pieces.row_lengths(), tf.int32)
        kept = (sizes > 0) & (starts < budget)
        positions = tf.where(kept, starts + result.first_start, -1)
        at = tf.boolean_mask(positions, kept)[:, tf.newaxis]
        targets = tf.tensor_scatter_nd_update(
            tf.fill(tf.shape(result.inputs), UNKNOWN), at, tf.boolean_mask(tags, kept)
        )
        return {
            "inputs": result.inputs,
            "token_types": result.token_types,
            "targets": targets,
            FIRST_PIECES: positions,
            TAGS: tags,
        }

    return ds.map(filled, num_parallel_calls=tf.data.AUTOTUNE)


def tags_of_words(
    values: Sequence[int], example: Mapping[str, Any], is_target: bool, *, labels: Sequence[str]
) -> list[str]:
    """Returns the tag of each word whose tag is known.

    Args:
      values: a tag per position of `inputs`, or more. It is not read for a target.
      example: the example, with `FIRST_PIECES` and the tags.
      is_target: whether the tags of the example are returned. A word that was cut off is predicted as `O`, so that
        metrics count its entity as missing.
      labels: the names of the tags.

    Returns:
      The names of the tags.
    """
    tags = example[TAGS].tolist()
    if is_target:
        return [labels[tag] for tag in tags if tag >= 0]
    positions = example[FIRST_PIECES].tolist()
    predicted = [labels[int(values[at])] if at >= 0 and int(values[at]) >= 0 else OUTSIDE for at in positions]
    return [name for name, tag in zip(predicted, tags, strict=True) if tag >= 0]


def add(name: str, source: seqio.DataSource, arguments: Mapping[str, Any], *, labels: Sequence[str]) -> seqio.Task:
    """Registers a tagging task; its metrics are precision, recall and F1 of entities.

    Args:
      name: the task name.
      source: examples with words and tags, named as in `conll_files`.
      arguments: the declared arguments of the task, with `vocabulary_path`.
      labels: the names of the tags.

    Returns:
      The registered task.
    """
    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[functools.partial(to_iob2, labels=labels), fill_words],
        output_features=classification.output_features(classification.late_vocabulary(arguments), labels),
        postprocess_fn=functools.partial(_postprocess_tags, labels=tuple(labels)),
        metric_fns=[entity_f1],
    )


def _postprocess_tags(values, example=None, is_target=False, *, labels):
    return tags_of_words(values, example, is_target, labels=labels)


# ---- text to text ----------------------------------------------------------------------------------------------------


def to_text(ds: tf.data.Dataset, *, prefix: str, labels: Sequence[str]) -> tf.data.Dataset:
    """Makes text of sentences: `conll2003: EU rejects a Bonn call` -> `ORG: EU; LOC: Bonn`, or `none` without entities.

    Args:
      ds: examples with words and tags.
      prefix: the first word of the inputs.
      labels: the names of the tags.

    Returns:
      Examples with `inputs` and `targets`, scalar strings.
    """
    names = tf.constant(["", *(f"; {label[2:]}: " if label != OUTSIDE else "" for label in labels)])
    is_inside = tf.constant([False, *(label != OUTSIDE for label in labels)])

    def text(example):
        words, tags = example[WORDS], tf.cast(example[TAGS], tf.int32)
        inside = tf.gather(is_inside, tags + 1)
        before = tf.where(begins_entity(tags, labels), tf.gather(names, tags + 1), tf.where(inside, " ", ""))
        entities = tf.strings.reduce_join(tf.strings.join([before, tf.where(inside, words, "")]))
        # All entities begin with a separator, so the first one has one too many.
        targets = tf.where(entities == "", NO_ENTITIES, tf.strings.regex_replace(entities, "^; ", ""))
        targets = tf.where(tf.reduce_any(tags < 0), text_to_text.UNKNOWN_LABEL, targets)
        inputs = tf.strings.join([f"{prefix}: ", tf.strings.reduce_join(words, separator=" ")])
        return {"inputs": inputs, "targets": targets}

    return ds.map(text, num_parallel_calls=tf.data.AUTOTUNE)


def entities_of_text(text: str, is_target: bool = False, **_) -> list[tuple[str, str]] | None:
    """Returns the entities of a text-to-text target or prediction as pairs of type and words; None for no target."""
    if is_target and text == text_to_text.UNKNOWN_LABEL:
        return None
    if text.strip() in ("", NO_ENTITIES):
        return []
    parts = [part.partition(": ") for part in text.split("; ")]
    return [(kind.strip(), words.strip()) for kind, _, words in parts]


def add_text_to_text(
    name: str, source: seqio.DataSource, arguments: Mapping[str, Any], *, labels: Sequence[str], prefix: str
) -> seqio.Task:
    """Registers the text-to-text form of a tagging task; see `to_text`.

    Args:
      name: the task name.
      source: examples with words and tags, named as in `conll_files`.
      arguments: the declared arguments of the task, with `vocabulary_path`.
      labels: the names of the tags.
      prefix: the first word of the inputs.

    Returns:
      The registered task.
    """
    iob2 = functools.partial(to_iob2, labels=labels)
    make: list[Callable] = [iob2, functools.partial(to_text, prefix=prefix, labels=labels)]
    return text_to_text.add(
        name, source, arguments, prepare=make, metric_fns=[entity_text_f1], postprocess_fn=entities_of_text
    )
