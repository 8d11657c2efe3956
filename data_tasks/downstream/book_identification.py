r"""A task of author or book identification: which of several text files is a passage from?

    TASK_ARGUMENTS = {"pattern": "books/*.txt", "words": 700}

A file is divided into passages of `words` consecutive words. The label of a passage is the name of its file without the
suffixes of its format and its compression, so a file per author gives authors. The last `validation_fraction` of the
passages of each file are the validation split, so that its passages are at other places of a book than those of the
training split.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec
import tensorflow as tf

from data_tasks.corpora import matching_files, text_files
from data_tasks.corpora.documents import TEXT, TRAIN, VALIDATION
from data_tasks.corpora.formats import stem
from data_tasks.corpora.rows import Rows, RowSource
from data_tasks.downstream import classification
from data_tasks.metrics.classification import accuracy
from t5x_like.data import task_arguments
from t5x_like.data.skipped_records import SkippedRecords
from t5x_like.errors import UserError
from t5x_like.vocabularies.labels import LabelVocabulary

TASK = "text_files_book"
# Lines that are read at once; a passage may continue in the next ones.
_LINES = 1 << 20


def names_of(files: Sequence[fsspec.core.OpenFile]) -> tuple[str, ...]:
    """Returns the label of each file: its name without the suffixes of its format and its compression.

    Raises:
      UserError: there are fewer than two files, or two have the same name.
    """
    found = tuple(stem(file.path) for file in files)
    if len(found) < 2:
        raise UserError(f"{TASK}: {len(found)} file found. Give two or more files, each of which is a label.")
    if repeated := [name for name in found if found.count(name) > 1]:
        raise UserError(f"{TASK}: two files have the label {repeated[0]!r}. Give files with different names.")
    return found


def passages(text: str, words: int, validation_fraction: float) -> dict[str, list[str]]:
    """Divides a text into passages: the last ones for validation, at least one per split if there are two or more.

    Args:
      text: the text.
      words: number of words of a passage; the rest of the text is left out.
      validation_fraction: fraction of the passages, in (0, 1).

    Returns:
      Split -> passages in the order of the text, words separated by single spaces.
    """
    parts = text.split()
    found = [" ".join(parts[start : start + words]) for start in range(0, len(parts) - words + 1, words)]
    held_out = max(1, min(len(found) - 1, round(validation_fraction * len(found))))
    return {TRAIN: found[:-held_out], VALIDATION: found[-held_out:]}


def _read(arguments: Mapping[str, Any], split: str) -> Rows:
    words, fraction, pattern = (arguments[name] for name in ("words", "validation_fraction", "pattern"))
    if words < 1:
        raise UserError(f"words={words} in TASK_ARGUMENTS of {TASK}: not a positive integer. Give a number of words.")
    if not 0 < fraction < 1:
        raise UserError(
            f"validation_fraction={fraction} in TASK_ARGUMENTS of {TASK}: out of range. Give a fraction in (0, 1)."
        )
    origin = matching_files.describe(_files(arguments))
    return _rows(pattern, origin, words, fraction, arguments["text_column"], arguments["on_bad_record"])[split]


def _files(arguments: Mapping[str, Any]) -> list[fsspec.core.OpenFile]:
    if not arguments["pattern"]:
        raise UserError(f"{TASK} reads files, but none are given. Give --gin.DATA_FILES='books/*.txt'.")
    return matching_files.files(arguments["pattern"])


@functools.lru_cache(maxsize=2)
def _rows(
    pattern: str, origin: str, words: int, fraction: float, text_column: str, on_bad_record: str
) -> dict[str, Rows]:
    """Returns split -> rows. Files are read again if `origin` says that they have changed."""
    files, skipped = matching_files.files(pattern), SkippedRecords()
    names = names_of(files)
    texts: dict[str, list[str]] = {TRAIN: [], VALIDATION: []}
    labels: dict[str, list[int]] = {TRAIN: [], VALIDATION: []}
    for label, file in enumerate(files):
        documents = text_files.documents(
            [file],
            text_column=text_column,
            lines_per_document=_LINES,
            max_document_bytes=None,
            on_bad_record=on_bad_record,
            skipped=skipped,
        )
        found = passages(" ".join(document.decode() for document in documents), words, fraction)
        if not all(found.values()):
            raise UserError(
                f"{TASK}: {names[label]} has fewer than two passages of {words} words. Decrease words in "
                "TASK_ARGUMENTS, or leave the file out."
            )
        for split, of_file in found.items():
            texts[split] += of_file
            labels[split] += [label] * len(of_file)
    counts = skipped.per_file()
    return {
        split: Rows({TEXT: tf.constant(texts[split]), "label": tf.constant(labels[split], tf.int32)}, origin, counts)
        for split in texts
    }


def _add() -> None:
    arguments = task_arguments.declare(
        TASK,
        # Files to read, one per label: a path that contains * or ?, local or in a bucket. DATA_FILES.
        pattern="",
        # The column, or the field of a record, that holds the text. TEXT_COLUMN.
        text_column="text",
        # What to do with a record whose text cannot be read: 'error', or 'skip' to skip and count. ON_BAD_RECORD.
        on_bad_record="error",
        # Fraction of the passages of each file, at its end, that are the validation split.
        validation_fraction=0.2,
        # Number of words of a passage.
        words=700,
        # A Hugging Face directory or a SentencePiece model. Required.
        **{classification.VOCABULARY_PATH: None},
    )

    def describe() -> str:
        about = matching_files.describe(_files(arguments))
        return (
            f"{TASK}: {about}, from {arguments['pattern']}; validation {arguments['validation_fraction']:.2%} by place"
        )

    classification.add(
        TASK,
        RowSource(functools.partial(_read, arguments), (TRAIN, VALIDATION), describe),
        arguments,
        texts=(TEXT,),
        labels=LabelVocabulary(lambda: names_of(_files(arguments))),
        metric_fns=[accuracy],
    )


_add()
