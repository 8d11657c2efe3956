r"""The corpus `text_files`: the documents of all files that a pattern matches, in any of `formats`.

    DATA_FILES = 'books/*.txt'
    DATA_FILES = 'gs://…/train-*.parquet'
    VALIDATION_FILES = 'gs://…/validation.parquet'

Files are read in constant memory, see `file_source`. A record of most formats is one document. A .txt file is split
into documents of a fixed number of lines, in the order of the file. Line ends of lines become \n and byte-order marks
are removed. Documents longer than `max_document_bytes` are split, so that a file without line ends is processed as fast
as any other.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import fsspec
import seqio

from data_tasks.corpora import matching_files
from data_tasks.corpora.documents import TRAIN, VALIDATION
from data_tasks.corpora.documents_of_files import BlockReader, Part, Rules, iterate
from data_tasks.corpora.file_source import FileSource
from data_tasks.corpora.formats.base import Reading
from data_tasks.pretraining.span_corruption import add_span_corruption_task
from t5x_like.data import task_arguments
from t5x_like.data.skipped_records import SkippedRecords
from t5x_like.errors import UserError
from t5x_like.vocabularies import shipped
from t5x_like.vocabularies.late import LateVocabulary, sentencepiece_model

TASK = "text_files_span_corruption"
MAX_DOCUMENT_BYTES = 1 << 15
_BLOCK_BYTES = 1 << 20

FILES_ARGUMENTS = dict(
    # Files to read: a path that may contain *, ** and ?, local or in a bucket (any fsspec path), or the directory of a
    # data set that Hugging Face's `datasets` saved. DATA_FILES.
    pattern="",
    # Validation files. Without them, documents are held out by a hash of their text. VALIDATION_FILES.
    validation_pattern=None,
    # Fraction of the documents to hold out without validation_pattern.
    validation_fraction=0.02,
    # The column, or the field of a record, that holds the text. TEXT_COLUMN.
    text_column="text",
    # What to do with a record whose text cannot be read: 'error', or 'skip' to skip and count. ON_BAD_RECORD.
    on_bad_record="error",
    # Lines of a .txt file per document.
    lines_per_document=64,
)
"""Arguments of tasks over files."""

_DEFAULTS = FILES_ARGUMENTS | dict(
    # Longer documents are split, between lines or words where possible. Documents are tokenized and corrupted in
    # batches, so the first batch takes several seconds per 10 MB.
    max_document_bytes=MAX_DOCUMENT_BYTES,
    # A Hugging Face directory, or a SentencePiece model; words and their counts in tasks that read them. Default: the
    # model shipped with this package, which can encode any text.
    vocabulary_path=None,
)


def declare(
    task: str, make_vocabulary: Callable[[Callable[[], str | None]], seqio.Vocabulary] | None = None, **defaults: Any
) -> tuple[FileSource, seqio.Vocabulary]:
    """Declares the arguments of a task over text files and returns its source and vocabulary.

    Args:
      task: the name that the task will be registered under.
      make_vocabulary: makes the vocabulary, given a function that returns the argument `vocabulary_path` (None if not
        given). Default: from a Hugging Face directory or a SentencePiece model, the shipped one without
        `vocabulary_path`.
      **defaults: defaults of arguments that differ from other tasks.

    Returns:
      The source and the vocabulary. Both use the current values of the arguments.
    """
    values = task_arguments.declare(task, **_DEFAULTS | defaults)
    make_vocabulary = make_vocabulary or _sentencepiece
    return source(values), make_vocabulary(lambda: values["vocabulary_path"])


def _sentencepiece(path: Callable[[], str | None]) -> LateVocabulary:
    return LateVocabulary(lambda: path() or str(shipped.PYTHON_DOCS_MODEL), read_other=sentencepiece_model)


def source(values: Mapping[str, Any], between_blank_lines: Callable[[], bool] = lambda: False) -> FileSource:
    """Returns the source of the documents that task arguments describe.

    Args:
      values: the arguments `FILES_ARGUMENTS`, and perhaps `max_document_bytes`. They are read when data is requested.
      between_blank_lines: returns whether documents are separated by blank lines, in text files and in the texts of
        other formats.
    """

    def rules() -> Rules:
        by_lines = not between_blank_lines()
        return Rules(
            reading=Reading(values["text_column"], values["lines_per_document"] if by_lines else None),
            max_document_bytes=values.get("max_document_bytes"),
            on_bad_record=values["on_bad_record"],
            split_at_blank_lines=not by_lines,
            validation_fraction=0.0 if values["validation_pattern"] else values["validation_fraction"],
        )

    def split(name: str) -> tuple[Sequence[fsspec.core.OpenFile], Rules]:
        train, validation = _files(values["pattern"], values["validation_pattern"])
        is_validation = name == VALIDATION
        if validation is not None:
            if not train and not is_validation:
                raise UserError(
                    f"VALIDATION_FILES={values['validation_pattern']} has all files of DATA_FILES={values['pattern']}, "
                    "and none is left to train on. Give other files."
                )
            return (validation if is_validation else train), rules()
        if is_validation and not values["validation_fraction"]:
            raise UserError(
                "validation_fraction=0: no document is held out to evaluate. Give VALIDATION_FILES, a larger fraction "
                "in TASK_ARGUMENTS, or EVAL_DATA=None to train without an evaluation."
            )
        return train, dataclasses.replace(rules(), is_held_out=is_validation)

    def describe() -> str:
        train, validation = _files(values["pattern"], values["validation_pattern"])
        line = f"text_files: {TRAIN} {matching_files.describe(train)}, from {values['pattern']}"
        if validation is not None:
            return f"{line}; {VALIDATION} {matching_files.describe(validation)}, from {values['validation_pattern']}"
        return f"{line}; {VALIDATION} {values['validation_fraction']:.2%} of the documents, by their hash"

    def advice(name: str) -> str:
        if name != VALIDATION or values["validation_pattern"]:
            return ""
        fraction = values["validation_fraction"]
        return (
            f"validation_fraction={fraction}: this fraction of the documents is held out, which may be none of a few. "
            "Give VALIDATION_FILES, a larger fraction in TASK_ARGUMENTS, or EVAL_DATA=None for no evaluation."
        )

    return FileSource(split, describe, advice)


def documents(
    chosen: Sequence[fsspec.core.OpenFile],
    *,
    text_column: str = "text",
    lines_per_document: int = 64,
    max_document_bytes: int | None = MAX_DOCUMENT_BYTES,
    on_bad_record: str = "error",
    skipped: SkippedRecords | None = None,
) -> Iterator[bytes]:
    """Yields the documents of files in order, in UTF-8.

    Args:
      chosen: files, see `matching_files.files`.
      text_column: the column, or the field of a record, that holds the text.
      lines_per_document: lines of a .txt file per document.
      max_document_bytes: longer documents are split; None to split none.
      on_bad_record: `error`, or `skip`.
      skipped: counts what is skipped.

    Yields:
      UTF-8 documents.

    Raises:
      UserError: a file is invalid. The message names the file and the place.
    """
    rules = Rules(Reading(text_column, lines_per_document), max_document_bytes, on_bad_record)
    reader = BlockReader(chosen, rules, skipped or SkippedRecords(), block_bytes=_BLOCK_BYTES)
    for file in range(len(chosen)):
        yield from (document.text for document in iterate(reader, Part(file)))


def _files(
    pattern: str, validation_pattern: str | None
) -> tuple[list[fsspec.core.OpenFile], list[fsspec.core.OpenFile] | None]:
    """Returns the training and the validation files, None without a pattern for them."""
    if not pattern:
        raise UserError(
            "the task reads files, but none are given. Give --gin.DATA_FILES='books/*.txt', or other files; see "
            "docs/own_text.md for the formats."
        )
    train = matching_files.files(pattern, "DATA_FILES")
    if not validation_pattern:
        return train, None
    held_out = matching_files.files(validation_pattern, "VALIDATION_FILES")
    known = set(map(matching_files.path_of, held_out))
    return [file for file in train if matching_files.path_of(file) not in known], held_out


add_span_corruption_task(TASK, *declare(TASK))
