"""Masked LM tasks over the shipped corpora."""

import functools
from collections.abc import Callable

import seqio

from data_tasks import preprocessors
from data_tasks.corpora import python_docs, text_files
from data_tasks.corpora.documents import DocumentSource
from data_tasks.documents_task import add_task, number_features, text_features
from data_tasks.pretraining.masked_lm import (
    BERT_MASKING,
    MASK_RATE,
    BertMasking,
    Masking,
    RobertaMasking,
    mask_inputs,
)
from data_tasks.pretraining.masked_lm_inputs import DUPE_FACTOR, duplicate_documents, full_sentences, single_documents
from t5x_like.data import task_arguments
from t5x_like.vocabularies import shipped


def output_features(vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
    """Returns the output features of every masked LM task."""
    return text_features(vocabulary, "inputs", "targets", ended=()) | number_features("masked_positions")


def add_masked_lm_task(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    *,
    examples: Callable = single_documents,
    masking: Masking | Callable[[], Masking] = BERT_MASKING,
    dupe_factor: int | None = None,
    text_feature: str = "text",
) -> seqio.Task:
    """Registers a masked LM task: `inputs` are corrupted text, `targets` the original tokens at `masked_positions`.

    Args:
      name: the task name.
      source: a source of documents.
      vocabulary: see `special_tokens.special_tokens` for its requirements.
      examples: makes examples from documents: `single_documents` (BERT) or `full_sentences` (RoBERTa).
      masking: the rule for choosing tokens, or a function that returns it when data is read.
      dupe_factor: enables static masking: the number of copies of each document, each with other masks, which are the
        same in every epoch. Default: dynamic masking, with other masks in every epoch.
      text_feature: the feature of the source that holds the text.

    Returns:
      The registered task.
    """
    static = dupe_factor is not None

    def corrupt(ds, sequence_length, output_features):
        rule = masking() if callable(masking) else masking
        return mask_inputs(ds, sequence_length, output_features, masking=rule, static=static)

    copies = [functools.partial(duplicate_documents, dupe_factor=dupe_factor)] if static else []
    return add_task(
        name,
        source,
        [examples, corrupt],
        output_features(vocabulary),
        prepare=[preprocessors.tokenize, *copies],
        text_feature=text_feature,
    )


def add_text_files_task(
    name: str, masking: Callable[[float], Masking], examples: Callable = single_documents, rate: float = MASK_RATE
) -> None:
    """Registers a task over text files, with the argument `mask_rate`.

    Args:
      name: the task name.
      masking: returns the rule for choosing tokens, given the rate.
      examples: see `add_masked_lm_task`.
      rate: the default of the argument.
    """
    source, vocabulary = text_files.declare(name, mask_rate=rate)
    add_masked_lm_task(name, source, vocabulary, examples=examples, masking=of_rate(name, masking))


def of_rate(task: str, masking: Callable[[float], Masking]) -> Callable[[], Masking]:
    """Returns a function that returns the rule for choosing tokens for the argument `mask_rate` of a task.

    Args:
      task: the name of the task.
      masking: returns the rule, given the rate.
    """
    return lambda: masking(task_arguments.current(task)["mask_rate"])


PYTHON_DOCS = (DocumentSource(python_docs.read), shipped.python_docs())

add_masked_lm_task("python_docs_masked_lm", *PYTHON_DOCS)
add_masked_lm_task("python_docs_masked_lm_whole_word", *PYTHON_DOCS, masking=BertMasking(whole_words=True))
add_masked_lm_task("python_docs_masked_lm_static", *PYTHON_DOCS, dupe_factor=DUPE_FACTOR)
_FULL_SENTENCES = "python_docs_full_sentences"
task_arguments.declare(_FULL_SENTENCES, mask_rate=MASK_RATE)
add_masked_lm_task(
    _FULL_SENTENCES, *PYTHON_DOCS, examples=full_sentences, masking=of_rate(_FULL_SENTENCES, RobertaMasking)
)
# Long documents for Longformer: pieces of one document each, with RoBERTa's masks.
add_masked_lm_task("python_docs_long_documents", *PYTHON_DOCS, masking=RobertaMasking())
for _name, _masking, _examples in (
    ("text_files_masked_lm", BertMasking, single_documents),
    ("text_files_full_sentences", RobertaMasking, full_sentences),
    ("text_files_long_documents", RobertaMasking, single_documents),
):
    add_text_files_task(_name, _masking, _examples)
