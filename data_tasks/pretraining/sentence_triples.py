"""The task `text_files_sentence_triples`: a sentence and its neighbors (Kiros et al. 2015, arXiv:1506.06726).

DATA_FILES = 'books/*.txt'
VOCABULARY_PATH = 'vocabulary/words/vocab.txt'
"""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from data_tasks.corpora import text_files
from data_tasks.feature_checks import require_lengths
from data_tasks.pretraining import sentence_files
from data_tasks.pretraining.sentence_tasks import add_sentences_task
from t5x_like.data import task_arguments
from t5x_like.vocabularies import late_words
from t5x_like.vocabularies.word_vocabularies import WordSequenceVocabulary

TASK = "text_files_sentence_triples"
FEATURES = ("previous", "inputs", "next")


@tf.autograph.experimental.do_not_convert
def sentence_triples(
    ds: tf.data.Dataset, sequence_length: Mapping[str, int] | None, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
    """Makes an example of every sentence that has two neighbors in its document.

    A sentence ends in EOS. Examples with a longer sentence than `inputs` may have are left out, as in the released
    code, which leaves out sentences of 30 words and more.

    Args:
      ds: documents divided into sentences, see `data_tasks.pretraining.sentences`.
      sequence_length: maximum length of `inputs` in tokens, with EOS, which the neighbors have too.
      output_features: `inputs`, whose vocabulary has EOS.

    Returns:
      Examples with `previous`, `inputs` and `next`, int32 `[tokens]`.

    Raises:
      UserError: the length of `inputs` is missing.
    """
    length = require_lengths("a task of sentence triples", sequence_length, "inputs")["inputs"]
    eos = output_features["inputs"].vocabulary.eos_id

    def triples(document):
        words = tf.RaggedTensor.from_row_lengths(document["tokens"], document["sentence_lengths"])
        found = tf.concat([words, tf.fill([words.nrows(), 1], eos)], axis=1)
        fits = document["sentence_lengths"] < length
        places = {"previous": slice(None, -2), "inputs": slice(1, -1), "next": slice(2, None)}
        kept = tf.reduce_all([fits[place] for place in places.values()], axis=0)
        return {name: tf.ragged.boolean_mask(found[place], kept) for name, place in places.items()}

    return ds.map(triples, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def _add() -> None:
    own = sentence_files.SENTENCE_ARGUMENTS
    arguments = task_arguments.declare(TASK, **text_files.FILES_ARGUMENTS, **own, vocabulary_path=None)
    add_sentences_task(
        TASK,
        sentence_files.source(arguments),
        late_words.late(lambda: arguments["vocabulary_path"], WordSequenceVocabulary),
        steps=[sentence_triples],
        outputs=lambda vocabulary: {name: seqio.Feature(vocabulary, add_eos=False) for name in FEATURES},
        split=lambda: sentence_files.split(arguments),
    )


_add()
