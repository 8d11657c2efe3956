"""Words and their characters for ELMo, from text files (`text_files_bidirectional_words`) and from `python_docs`.

    DATA_FILES = 'books/*.txt'
    VOCABULARY_PATH = 'vocabulary/words/vocab.txt'

A line of a text file, or of a document of another format, is a sentence of words that whitespace separates. The words
of `python_docs_bidirectional_words` are those of the task `python_docs_word_characters`. There are
two streams. In the first one, a language model reads `<S>` and the words of a sentence, and predicts the words and
`</S>`. In the second one, it reads `</S>` and the words from the last to the first, and predicts these and `<S>`, whose
id is the 0 of padding, as in the vocabularies of the released code.
"""

from collections.abc import Callable, Mapping

import seqio
import tensorflow as tf

from data_tasks.corpora import python_docs, text_files
from data_tasks.corpora.documents import DocumentSource
from data_tasks.documents_task import add_task, text_features
from data_tasks.feature_checks import require_lengths
from data_tasks.pretraining import word_characters_tasks
from t5x_like.vocabularies import late_words, words
from t5x_like.vocabularies.word_characters import BOS, EOS, MAX_CHARACTERS

TASK = "text_files_bidirectional_words"
_BOS_ID = 0
_DOCUMENTS_PER_BATCH = 128


@tf.autograph.experimental.do_not_convert
def bidirectional_words(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    max_characters: int = MAX_CHARACTERS,
) -> tf.data.Dataset:
    """Converts documents to the words and the characters of both streams, and cuts them into rows.

    Args:
      ds: documents as text, `targets`, scalar string.
      sequence_length: length of `targets`, which is the length of a row, in words. None: a row per document.
      output_features: `targets` with a vocabulary of words, `characters` with a `CharacterVocabulary`.
      max_characters: number of characters per word, with those that begin and end it. Longer words are cut.

    Returns:
      Examples with `targets` and `backward_targets`, int32 `[words]`, the next words of both streams, and with
      `characters` and `backward_characters`, int32 `[words, max_characters]`, the words before these.

    Raises:
      UserError: the length of `targets` is missing.
    """
    vocabulary, characters = (output_features[name].vocabulary for name in ("targets", "characters"))

    def convert(sentences: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        number = sentences.nrows()
        bos, eos = (tf.fill([number, 1], word) for word in (BOS, EOS))
        ids = sentences.with_flat_values(vocabulary.words_to_ids(sentences.flat_values))
        backward = _reverse(sentences)
        found = {
            "targets": tf.concat([ids, tf.fill([number, 1], vocabulary.eos_id)], axis=1),
            "backward_targets": tf.concat([_reverse(ids), tf.fill([number, 1], _BOS_ID)], axis=1),
        }
        read = {"characters": tf.concat([bos, sentences], 1), "backward_characters": tf.concat([eos, backward], 1)}
        return {name: each.flat_values for name, each in found.items()} | {
            name: characters.words_to_ids(each.flat_values, max_characters) for name, each in read.items()
        }

    def split(texts: tf.Tensor) -> tf.RaggedTensor:
        lines = tf.strings.split(tf.reshape(texts, [-1]), "\n").flat_values
        sentences = tf.strings.split(lines)
        return tf.ragged.boolean_mask(sentences, sentences.row_lengths() > 0)

    if sequence_length is None:
        return ds.map(lambda document: convert(split(document["targets"])), num_parallel_calls=tf.data.AUTOTUNE)
    length = require_lengths("a language model of words", sequence_length, "targets")["targets"]

    def cut(batch):
        joined = convert(split(batch["targets"]))
        starts = tf.range(0, tf.shape(joined["targets"])[0], length)
        return {name: tf.RaggedTensor.from_row_starts(each, starts) for name, each in joined.items()}

    ds = ds.batch(_DOCUMENTS_PER_BATCH).map(cut, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.unbatch().map(
        lambda row: {
            name: each.to_tensor() if isinstance(each, tf.RaggedTensor) else each for name, each in row.items()
        }
    )


def _reverse(rows: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns rows from their last to their first element."""
    first, last = rows.row_starts(), rows.row_limits() - 1
    at = tf.range(tf.size(rows.flat_values, out_type=tf.int64))
    mirrored = tf.repeat(first + last, rows.row_lengths()) - at
    return rows.with_flat_values(tf.gather(rows.flat_values, mirrored))


def separate_words(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Puts spaces around the words of `words.split`, and keeps line breaks."""

    def separate(document):
        return {**document, "targets": tf.strings.regex_replace(document["targets"], words.SINGLE, r" \1 ")}

    return ds.map(separate, num_parallel_calls=tf.data.AUTOTUNE)


def _add(name: str, source: seqio.DataSource, vocabulary: seqio.Vocabulary, *prepare: Callable) -> None:
    characters = seqio.Feature(words.CharacterVocabulary(), add_eos=False, rank=2)
    features = text_features(vocabulary, "targets", "backward_targets", ended=())
    features |= {"characters": characters, "backward_characters": characters}
    add_task(name, source, [bidirectional_words], features, prepare=prepare)


_add(TASK, *text_files.declare(TASK, late_words.late))
_add(
    "python_docs_bidirectional_words",
    DocumentSource(python_docs.read),
    words.WordVocabulary(word_characters_tasks.python_docs_words),
    separate_words,
)
