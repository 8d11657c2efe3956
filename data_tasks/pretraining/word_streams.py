"""The task `text_files_words`: streams of words for static word vectors, from text files.

    DATA_FILES = 'books/*.txt'
    VOCABULARY_PATH = 'vocabulary/words/vocab.txt'

A line of a text file, or a document of another format, is a sentence, and ends in EOS. Words are separated by
whitespace. Words that are not in the vocabulary are left out, before any distance is counted, as in word2vec and GloVe.
"""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks.corpora import text_files
from data_tasks.documents_task import add_task, text_features
from data_tasks.feature_checks import require_lengths
from t5x_like.vocabularies import late_words
from t5x_like.vocabularies.word_counts import EOS

TASK = "text_files_words"
_DOCUMENTS_PER_BATCH = 128


@tf.autograph.experimental.do_not_convert
def word_streams(
    ds: tf.data.Dataset, sequence_length: Mapping[str, int] | None, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
    """Joins documents, whose lines each end in EOS, and cuts the words into rows.

    Args:
      ds: documents as text, `targets`, scalar string.
      sequence_length: length of `targets`, which is the length of a row, in words.
      output_features: `targets`, with a vocabulary of words.

    Returns:
      Examples with `targets`, int32 `[words]`. Only the last row of a group of documents is short.

    Raises:
      UserError: the length of `targets` is missing.
    """
    vocabulary = output_features["targets"].vocabulary
    length = require_lengths("a stream of words", sequence_length, "targets")["targets"]

    def cut(batch):
        lines = tf.strings.regex_replace(batch["targets"], "\n", f" {EOS} ")
        joined = tf.strings.reduce_join(lines, separator=f" {EOS} ") + f" {EOS}"
        ids = vocabulary.encode_tf(joined)
        return {"targets": tf.RaggedTensor.from_row_starts(ids, tf.range(0, tf.size(ids), length))}

    return ds.batch(_DOCUMENTS_PER_BATCH).map(cut, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


_SOURCE, _VOCABULARY = text_files.declare(TASK, late_words.late)
add_task(TASK, _SOURCE, [word_streams], text_features(_VOCABULARY, "targets", ended=()), prepare=())
