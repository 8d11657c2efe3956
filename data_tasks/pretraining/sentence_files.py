"""Files whose documents are divided into sentences: the lines of plain text, or prose that is split at punctuation."""

from collections.abc import Mapping
from typing import Any

from data_tasks.corpora import matching_files, text_files
from data_tasks.corpora.file_source import FileSource
from data_tasks.corpora.formats import format_of
from data_tasks.corpora.formats.lines import TextFiles
from data_tasks.pretraining import sentences
from t5x_like.data.task_arguments import Unset
from t5x_like.errors import UserError

ARGUMENT = "one_sentence_a_line"

SENTENCE_ARGUMENTS = {
    # Whether the text has BERT's format: one sentence per line, a blank line between documents. Otherwise sentences are
    # split at punctuation, and documents of a .txt file have lines_per_document. None: BERT's format in .txt files; the
    # records of other files are documents.
    ARGUMENT: Unset(bool),
}
"""Arguments of tasks over files of sentences."""


def lines_are_sentences(arguments: Mapping[str, Any]) -> bool:
    """Returns whether each line of the files is a sentence.

    Args:
      arguments: the arguments `SENTENCE_ARGUMENTS`, and the patterns of files.

    Raises:
      UserError: the argument is not set, and the files are text and records.
    """
    if arguments[ARGUMENT] is not None:
        return bool(arguments[ARGUMENT])
    patterns = [arguments[name] for name in ("pattern", "validation_pattern") if arguments[name]]
    names = [file.path for pattern in patterns for file in matching_files.files(pattern)]
    plain = [isinstance(format_of(name), TextFiles) for name in names]
    if len(set(plain)) > 1:
        raise UserError(
            f"{names[plain.index(True)]} is plain text, and {names[plain.index(False)]} has records. Give "
            f"--gin.TASK_ARGUMENTS=\"{{'{ARGUMENT}': True}}\" if each line is a sentence, otherwise False."
        )
    return all(plain)


def source(arguments: Mapping[str, Any]) -> FileSource:
    """Returns the source of the documents; see `text_files.source`."""
    return text_files.source(arguments, between_blank_lines=lambda: lines_are_sentences(arguments))


def split(arguments: Mapping[str, Any]) -> sentences.Split:
    """Returns the function that splits a document into sentences."""
    return sentences.split_lines if lines_are_sentences(arguments) else sentences.split_prose
