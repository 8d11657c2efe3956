"""StructBERT's data: masked pairs of segments in three orders, with shuffled trigrams.

task_arguments = {"pattern": "books/*.txt", "vocabulary_path": "bert_base_uncased_vocab.txt"}
"""

import functools

from data_tasks import vocabularies
from data_tasks.corpora import python_docs
from data_tasks.corpora.documents import DocumentSource
from data_tasks.pretraining.masked_lm import BertMasking
from data_tasks.pretraining.sentence_pairs_tasks import (
    TEXT_FILES_ARGUMENTS,
    add_sentence_pairs_task,
    read_text_files,
    split_function,
)
from data_tasks.pretraining.sentence_structure import shuffle_trigrams, structured_pairs
from data_tasks.vocabularies.late import LateVocabulary
from data_tasks.vocabularies.wordpiece import WordPieceVocabulary
from t5x_like.data import task_arguments

TEXT_FILES_TASK = "text_files_sentence_structure"

_ARGUMENTS = task_arguments.declare(
    TEXT_FILES_TASK,
    **TEXT_FILES_ARGUMENTS,
    # A Hugging Face directory, or a WordPiece vocabulary (BERT's vocab.txt). Required.
    vocabulary_path=None,
    # Whether to lower-case text and strip accents, as the uncased vocabularies require. A Hugging Face directory states
    # it itself.
    lower_case=True,
)

_add = functools.partial(
    add_sentence_pairs_task,
    make_pairs=structured_pairs,
    further=shuffle_trigrams,
    further_features=("shuffled_targets", "shuffled_positions"),
)
_add("python_docs_sentence_structure", DocumentSource(python_docs.read), vocabularies.python_docs())
_add(
    TEXT_FILES_TASK,
    DocumentSource(lambda: read_text_files(_ARGUMENTS)),
    LateVocabulary(
        lambda: _ARGUMENTS["vocabulary_path"],
        read_other=lambda path: WordPieceVocabulary(path, _ARGUMENTS["lower_case"]),
    ),
    split=lambda: split_function(_ARGUMENTS),
    masking=lambda: BertMasking(_ARGUMENTS["mask_rate"]),
)
