"""Words and their characters, for language models that read characters (Kim et al. 2016, ELMo)."""

import functools
from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks.documents_task import add_task
from data_tasks.feature_checks import require_lengths
from t5x_like.vocabularies import words
from t5x_like.vocabularies.word_characters import EOS, MAX_CHARACTERS

_DOCUMENTS_PER_BATCH = 128


def split_into_words(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Converts `targets` from text to words `[words]`, strings, of which the last is `words.EOS`."""
    return ds.map(
        lambda document: {"targets": tf.concat([words.split_tf(document["targets"]), [words.EOS]], axis=0)},
        num_parallel_calls=tf.data.AUTOTUNE,
    )


@tf.autograph.experimental.do_not_convert
def word_characters(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    max_characters: int = MAX_CHARACTERS,
) -> tf.data.Dataset:
    """Joins documents, cuts the result into chunks, and converts words to ids and to the ids of their characters.

    Args:
      ds: documents as words, `targets` `[words]`, each ending in `words.EOS`.
      sequence_length: length of `targets`, which is the length of a chunk, in words. None: each document is a chunk.
      output_features: `targets` with a `WordVocabulary`, `characters` with a `CharacterVocabulary`.
      max_characters: number of characters per word, with those that begin and end it.

    Returns:
      Examples with `targets`, int32 `[words]`, and `characters`, int32 `[words, max_characters]`.

    Raises:
      UserError: the length of `targets` is missing.
    """
    if sequence_length is not None:
        length = require_lengths("a language model of words", sequence_length, "targets")["targets"]

        def cut(batch):
            joined = batch["targets"].flat_values
            return {"targets": tf.RaggedTensor.from_row_starts(joined, tf.range(0, tf.size(joined), length))}

        ds = ds.ragged_batch(_DOCUMENTS_PER_BATCH, row_splits_dtype=tf.int32).map(cut).unbatch()
    vocabulary, characters = output_features["targets"].vocabulary, output_features["characters"].vocabulary
    return ds.map(
        lambda example: {
            "targets": vocabulary.words_to_ids(example["targets"]),
            "characters": characters.words_to_ids(_with_boundary(example["targets"]), max_characters),
        },
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def _with_boundary(found: tf.Tensor) -> tf.Tensor:
    """Returns words with the boundary of ELMo's characters in place of the end of a document."""
    return tf.where(found == words.EOS, EOS, found)


def add_word_characters_task(
    name: str,
    source: seqio.DataSource,
    vocabulary: words.WordVocabulary,
    *,
    text_feature: str = "text",
    max_characters: int = MAX_CHARACTERS,
) -> seqio.Task:
    """Registers a task for language models that read characters; see `word_characters`.

    Args:
      name: the task name.
      source: a source of documents.
      vocabulary: the words.
      text_feature: the feature of the source that holds the text.
      max_characters: number of characters per word.

    Returns:
      The registered task.
    """
    preprocessor = functools.partial(word_characters, max_characters=max_characters)
    features = {
        "targets": seqio.Feature(vocabulary),
        "characters": seqio.Feature(words.CharacterVocabulary(), add_eos=False, rank=2),
    }
    return add_task(name, source, [preprocessor], features, prepare=[split_into_words], text_feature=text_feature)
