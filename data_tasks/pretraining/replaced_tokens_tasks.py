"""Data of ELECTRA: masked tokens in blocks of whole sentences.

task_arguments = {"pattern": "books/*.txt", "vocabulary_path": "bert_base_uncased_vocab.txt"}
"""

from data_tasks import vocabularies
from data_tasks.corpora import python_docs
from data_tasks.corpora.documents import DocumentSource
from data_tasks.pretraining.electra_masking import ElectraMasking
from data_tasks.pretraining.sentence_pairs_tasks import TEXT_FILES_ARGUMENTS, read_text_files, split_function
from data_tasks.pretraining.span_masking_tasks import add_span_masking_task
from data_tasks.vocabularies.late import LateVocabulary
from data_tasks.vocabularies.wordpiece import WordPieceVocabulary
from t5x_like.data import task_arguments

TEXT_FILES_TASK = "text_files_replaced_tokens"

_ARGUMENTS = task_arguments.declare(
    TEXT_FILES_TASK,
    **TEXT_FILES_ARGUMENTS,
    # A Hugging Face directory, or a WordPiece vocabulary (BERT's vocab.txt). Required.
    vocabulary_path=None,
    # Whether to lower-case text and strip accents, as with ELECTRA's vocabulary. A Hugging Face directory states it
    # itself.
    lower_case=True,
)

add_span_masking_task(
    "python_docs_replaced_tokens",
    DocumentSource(python_docs.read),
    vocabularies.python_docs(),
    masking=ElectraMasking,
)
add_span_masking_task(
    TEXT_FILES_TASK,
    DocumentSource(lambda: read_text_files(_ARGUMENTS)),
    LateVocabulary(
        lambda: _ARGUMENTS["vocabulary_path"],
        read_other=lambda path: WordPieceVocabulary(path, _ARGUMENTS["lower_case"]),
    ),
    split=lambda: split_function(_ARGUMENTS),
    masking=lambda: ElectraMasking(_ARGUMENTS["mask_rate"]),
)
