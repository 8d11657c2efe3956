"""BERT's data: masked sentence pairs, from the shipped corpus and from text files with the vocabulary of a BERT.

task_arguments = {"pattern": "books/*.txt", "vocabulary_path": "bert_base_uncased_vocab.txt"}
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import seqio

from data_tasks import preprocessors, vocabularies
from data_tasks.corpora import python_docs, text_files
from data_tasks.corpora.documents import Corpus, DocumentSource, split_by_hash
from data_tasks.pretraining import sentences
from data_tasks.pretraining.masked_lm import MASK_RATE, BertMasking, Masking, mask_inputs
from data_tasks.pretraining.masked_lm_tasks import output_features
from data_tasks.pretraining.sentence_pairs import MakePairs, next_pairs, sentence_pairs
from data_tasks.vocabularies.late import LateVocabulary
from data_tasks.vocabularies.wordpiece import WordPieceVocabulary
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

TEXT_FILES_TASK = "text_files_sentence_pairs"
_BLANK_LINES = re.compile(rb"\r?\n[^\S\n]*\n\s*")
_WHOLE_FILE = 1 << 62  # lines

# Task arguments of sentence pairs from text files.
TEXT_FILES_ARGUMENTS = dict(
    # Files to read: a path that may contain *, ** and ?, local or in a bucket (any fsspec path).
    pattern="",
    # Validation files. Without them, documents are held out by a hash of their text.
    validation_pattern=None,
    # Fraction of the documents to hold out without validation_pattern.
    validation_fraction=0.02,
    # The field of a .jsonl record that holds the text.
    json_field="text",
    # Whether the files have BERT's format: one sentence per line, a blank line between documents. Otherwise sentences
    # are split at punctuation.
    one_sentence_a_line=True,
    # Lines of a .txt file per document, if one_sentence_a_line is False.
    lines_per_document=64,
    # Fraction of the tokens to mask; 0 for plain text, from which a student learns by losses between layers.
    mask_rate=MASK_RATE,
    # Maximum size of the text, all of which is held in memory.
    max_corpus_bytes=4 << 30,
)
_ARGUMENTS = task_arguments.declare(
    TEXT_FILES_TASK,
    **TEXT_FILES_ARGUMENTS,
    # A Hugging Face directory, or a WordPiece vocabulary (BERT's vocab.txt). Required.
    vocabulary_path=None,
    # Whether to lower-case text and strip accents, as the uncased vocabularies require. A Hugging Face directory states
    # it itself.
    lower_case=True,
)


def add_sentence_pairs_task(
    name: str,
    source: seqio.DataSource,
    vocabulary: seqio.Vocabulary,
    *,
    split: Callable[[], sentences.Split] = lambda: sentences.split_prose,
    masking: Callable[[], Masking] = BertMasking,
    make_pairs: MakePairs = next_pairs,
    further: Callable | None = None,
    further_features: Sequence[str] = (),
    text_feature: str = "text",
) -> seqio.Task:
    """Registers a task of masked sentence pairs for the features `specs.SENTENCE_PAIRS`.

    The features are `inputs`, `targets`, `masked_positions`, `token_types` and `next_sentence_label`. Pairs and masks
    differ in every epoch.

    Args:
      name: the task name.
      source: a source of documents.
      vocabulary: see `special_tokens.special_tokens` for its requirements.
      split: returns the function that splits a document into sentences, `sentences.split_lines` or `split_prose`. It is
        called when the data is read.
      masking: returns the rule for choosing tokens. It is called when the data is read.
      make_pairs: makes the next pair of each document: `next_pairs` (BERT), `sentence_order.ordered_pairs` (ALBERT) or
        `sentence_structure.structured_pairs` (StructBERT).
      further: a preprocessor of masked pairs.
      further_features: the features that it adds.
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
            functools.partial(sentence_pairs, make_pairs=make_pairs),
            mask,
            *([] if further is None else [further]),
        ],
        output_features=output_features(vocabulary)
        | {
            name: seqio.Feature(vocabularies.PASS_THROUGH, add_eos=False)
            for name in ("token_types", "next_sentence_label", *further_features)
        },
    )


def read_text_files(arguments: Mapping[str, Any]) -> Corpus:
    """Reads the corpus that task arguments describe; see `TEXT_FILES_ARGUMENTS`."""
    names = ("pattern", "validation_pattern", "validation_fraction", "json_field", "max_corpus_bytes")
    values = {name: arguments[name] for name in names}
    if arguments["one_sentence_a_line"]:
        return documents_between_blank_lines(**values)
    return text_files.read(**values, lines_per_document=arguments["lines_per_document"])


def split_function(arguments: Mapping[str, Any]) -> sentences.Split:
    """Returns the function that splits a document into sentences, by task arguments; see `TEXT_FILES_ARGUMENTS`."""
    return sentences.split_lines if arguments["one_sentence_a_line"] else sentences.split_prose


@functools.lru_cache(maxsize=2)
def documents_between_blank_lines(
    *,
    pattern: str,
    validation_pattern: str | None = None,
    validation_fraction: float = 0.02,
    json_field: str = "text",
    max_corpus_bytes: int = 4 << 30,
) -> Corpus:
    """Reads files whose documents are separated by blank lines.

    A file that is not valid UTF-8 is skipped as a whole and counted.

    Args:
      pattern: see `text_files.read`.
      validation_pattern: see `text_files.read`.
      validation_fraction: see `text_files.read`.
      json_field: see `text_files.read`.
      max_corpus_bytes: see `text_files.read`.

    Returns:
      The corpus.

    Raises:
      UserError: see `text_files.read`.
    """
    files = text_files.read(
        pattern=pattern,
        validation_pattern=validation_pattern,
        validation_fraction=0.0,
        json_field=json_field,
        lines_per_document=_WHOLE_FILE,
        max_document_bytes=max_corpus_bytes,
        max_corpus_bytes=max_corpus_bytes,
    )
    splits = {
        split: [document for text in texts for document in _BLANK_LINES.split(text.strip())]
        for split, texts in files.splits.items()
    }
    if not validation_pattern:
        splits = split_by_hash(
            (document for documents in splits.values() for document in documents), validation_fraction
        )
    return dataclasses.replace(files, splits=splits)


def _vocabulary_path() -> str:
    if _ARGUMENTS["vocabulary_path"] is None:
        raise UserError(
            f"{TEXT_FILES_TASK} needs task_arguments {{'vocabulary_path': 'path/to/vocab.txt'}}: the WordPiece "
            "vocabulary of a BERT model (with 'lower_case': False for a cased one), or its Hugging Face directory"
        )
    return _ARGUMENTS["vocabulary_path"]


add_sentence_pairs_task("python_docs_sentence_pairs", DocumentSource(python_docs.read), vocabularies.python_docs())
add_sentence_pairs_task(
    TEXT_FILES_TASK,
    DocumentSource(lambda: read_text_files(_ARGUMENTS)),
    LateVocabulary(_vocabulary_path, read_other=lambda path: WordPieceVocabulary(path, _ARGUMENTS["lower_case"])),
    split=lambda: split_function(_ARGUMENTS),
    masking=lambda: BertMasking(_ARGUMENTS["mask_rate"]),
)
