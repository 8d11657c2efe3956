"""ALBERT's data: pairs whose order is to be predicted, with masked n-grams.

task_arguments = {"pattern": "books/*.txt", "vocabulary_path": "spiece.model"}
"""

import tensorflow as tf

from data_tasks import vocabularies
from data_tasks.corpora import python_docs
from data_tasks.corpora.documents import DocumentSource
from data_tasks.pretraining.ngram_masking import NgramMasking
from data_tasks.pretraining.sentence_order import ordered_pairs
from data_tasks.pretraining.sentence_pairs_tasks import (
    TEXT_FILES_ARGUMENTS,
    add_sentence_pairs_task,
    read_text_files,
    split_function,
)
from data_tasks.vocabularies.late import LateVocabulary, sentencepiece_model
from t5x_like.data import task_arguments

TEXT_FILES_TASK = "text_files_sentence_order"

_ARGUMENTS = task_arguments.declare(
    TEXT_FILES_TASK,
    **TEXT_FILES_ARGUMENTS,
    # A SentencePiece model with [CLS], [SEP] and [MASK], such as ALBERT's spiece.model, or a Hugging Face directory.
    vocabulary_path=None,
    # Whether to lower-case text, as ALBERT's models require.
    lower_case=True,
)


def _split():
    split = split_function(_ARGUMENTS)
    if not _ARGUMENTS["lower_case"]:
        return split
    return lambda text: tf.strings.lower(split(text), encoding="utf-8")


add_sentence_pairs_task(
    "python_docs_sentence_order",
    DocumentSource(python_docs.read),
    vocabularies.python_docs(),
    masking=NgramMasking,
    make_pairs=ordered_pairs,
)
add_sentence_pairs_task(
    TEXT_FILES_TASK,
    DocumentSource(lambda: read_text_files(_ARGUMENTS)),
    LateVocabulary(
        lambda: _ARGUMENTS["vocabulary_path"], read_other=lambda path: sentencepiece_model(path, extra_ids=0)
    ),
    split=_split,
    masking=lambda: NgramMasking(_ARGUMENTS["mask_rate"]),
    make_pairs=ordered_pairs,
)
