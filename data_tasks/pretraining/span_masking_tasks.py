"""SpanBERT's data: masked spans in blocks of whole sentences.

task_arguments = {"pattern": "books/*.txt", "vocabulary_path": "bert_base_cased_vocab.txt"}
"""

import functools
from collections.abc import Callable

import seqio

from data_tasks import preprocessors, vocabularies
from data_tasks.corpora import python_docs
from data_tasks.corpora.documents import DocumentSource
from data_tasks.pretraining import sentences
from data_tasks.pretraining.masked_lm import Masking, mask_inputs
from data_tasks.pretraining.masked_lm_tasks import output_features
from data_tasks.pretraining.sentence_blocks import sentence_blocks
from data_tasks.pretraining.sentence_pairs_tasks import TEXT_FILES_ARGUMENTS, read_text_files, split_function
from data_tasks.pretraining.span_masking import SpanMasking
from data_tasks.vocabularies.late import LateVocabulary
from data_tasks.vocabularies.wordpiece import WordPieceVocabulary
from t5x_like.data import task_arguments

TEXT_FILES_TASK = "text_files_span_masking"

_ARGUMENTS = task_arguments.declare(
    TEXT_FILES_TASK,
    **TEXT_FILES_ARGUMENTS,
    # A Hugging Face directory, or a WordPiece vocabulary (BERT's vocab.txt). Required.
    vocabulary_path=None,
    # Whether to lower-case text and strip accents. SpanBERT's vocabulary is cased. A Hugging Face directory states it
    # itself.
    lower_case=False,
)


def add_span_masking_task(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    *,
    split: Callable[[], sentences.Split] = lambda: sentences.split_prose,
    masking: Callable[[], Masking] = SpanMasking,
    text_feature: str = "text",
) -> seqio.Task:
    """Registers a task of masked spans in blocks of whole sentences, for the features `specs.MASKED_LM`.

    Spans differ in every epoch.

    Args:
      name: the task name.
      source: a source of documents.
      vocabulary: see `special_tokens.special_tokens` and `word_starts` for its requirements.
      split: returns the function that splits a document into sentences. It is called when the data is read.
      masking: returns the rule for choosing tokens. It is called when the data is read.
      text_feature: the feature of the source that holds the text.

    Returns:
      The registered task.
    """

    def tokenize_sentences(ds, output_features):
        return sentences.tokenize_sentences(ds, output_features, split=split())

    def mask(ds, sequence_length, output_features):
        return mask_inputs(ds, sequence_length, output_features, masking=masking())

    return seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            functools.partial(preprocessors.documents, text_feature=text_feature),
            tokenize_sentences,
            seqio.CacheDatasetPlaceholder(),
            sentence_blocks,
            mask,
        ],
        output_features=output_features(vocabulary),
    )


add_span_masking_task("python_docs_span_masking", DocumentSource(python_docs.read), vocabularies.python_docs())
add_span_masking_task(
    TEXT_FILES_TASK,
    DocumentSource(lambda: read_text_files(_ARGUMENTS)),
    LateVocabulary(
        lambda: _ARGUMENTS["vocabulary_path"],
        read_other=lambda path: WordPieceVocabulary(path, _ARGUMENTS["lower_case"]),
    ),
    split=lambda: split_function(_ARGUMENTS),
    masking=lambda: SpanMasking(_ARGUMENTS["mask_rate"]),
)
