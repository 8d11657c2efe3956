"""`t5x_like augment`: adds copies of the rows of a table, in which a masked language model replaces words."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import jax
from absl import logging

from t5x_like import paths
from t5x_like.data.records import GZIP_SUFFIX, Record, decode, format_row, read_bytes, read_records
from t5x_like.data.source import DataSource
from t5x_like.errors import UserError
from t5x_like.inference import windows
from t5x_like.inference.augmentation import Augmentation, MaskedWordPredictor, MaskedWords
from t5x_like.inference.examples import Fields
from t5x_like.inference.part_files import PartFiles
from t5x_like.inference.runner import Runner
from t5x_like.inference.word_vectors import WordVectors
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.runtime import distributed
from t5x_like.stored.loaded import Loaded

_SUFFIXES = (".tsv", ".csv", ".jsonl")


@distributed.with_watchdog()
def augment(
    loaded: Loaded,
    *,
    input_path: str,
    output_path: str,
    columns: str | Sequence[str | int],
    overwrite: bool = False,
    augmentation: Augmentation = Augmentation(),  # noqa: B008 (frozen)
    glove_path: str | None = None,
    seed: int = 0,
    batch_size: int = 64,
) -> str:
    """Writes the rows of a table, each followed by copies of it in which words of one text are replaced.

    The copies have the labels and the other columns of their row. Their texts are the words of the row, as the
    vocabulary splits and lower-cases them, separated by spaces; `inference/augmentation.py` says which words are
    replaced by which. Unlike the published code, the copies for the second text of a pair have the original first text.

    The output has the format and the columns of the input, so it can replace the training file of a task. Several
    processes share the rows. After an interruption, finished parts are not computed again.

    Args:
      loaded: An encoder with the head of masked language modeling, and a source with a WordPiece vocabulary; see
        `open_model`.
      input_path: The table, a `.tsv`, `.csv` or `.jsonl` file, local or in a bucket. Rows with too few columns are
        skipped.
      output_path: The file to write, with the same suffix. It appears when it is complete.
      columns: The columns of the texts: names, separated by commas or as a list. Numbers from 0 are the columns of a
        `.tsv` or `.csv` file without a header.
      overwrite: Whether to replace an existing output file.
      augmentation: How many copies are drawn, and how.
      glove_path: A text file of word vectors, whose nearest neighbors replace words of several pieces. None: these
        words stay.
      seed: Seed of the copies. Those of a row depend on the seed and on the number of the row alone.
      batch_size: Masked words per batch.

    Returns:
      `output_path`.

    Raises:
      UserError: A setting or a row is invalid. Or the output file, or the unfinished output of
        another command, exists.
      ProcessLost: Another process has exited.
    """
    # ---- Settings ---------------------------------------------------------------------------------------------------
    _check_paths(input_path, output_path)
    paths.check_output_file("OUTPUT_PATH", output_path, overwrite=overwrite)
    loaded = dataclasses.replace(loaded, objective=MaskedLM())
    columns = _columns(columns)
    predictor = MaskedWordPredictor(loaded.config, augmentation.candidates)

    # ---- Rows: all of them are checked before the parameters are loaded ---------------------------------------------
    records = _read(input_path, columns)
    texts = [tuple(_text(input_path, record, column) for column in columns) for record in records]
    vectors = None if glove_path is None else WordVectors.read(glove_path)
    examples = _examples(texts, loaded.data, loaded.config, augmentation, vectors)
    predictor.check(examples)
    loaded.check_vocabulary(loaded.data, "omit VOCABULARY_PATH")

    # ---- Output: the rows that an interrupted command has not written -----------------------------------------------
    table = input_path.removesuffix(GZIP_SUFFIX)
    has_header = not table.endswith(".jsonl") and not isinstance(columns[0], int)
    header = format_row(table, list(records[0].values)) if has_header else ""
    output = PartFiles(output_path, render=lambda rows: "".join(format_row(table, row) for row in rows), header=header)
    fingerprint = _fingerprint(loaded, records, columns, augmentation, glove_path, batch_size, seed)
    ranges = windows.open_output(output, len(records), batch_size, fingerprint)

    # ---- Copies -----------------------------------------------------------------------------------------------------
    runner = Runner(predictor, loaded.read(), loaded.partitioner, batch_size)

    def rows(index: int, fields: Fields | None) -> list[dict[str | int, Any]]:
        copies = examples.copies(index, fields, seed)
        values = dict(records[index].values)
        return [values, *(values | {name: text} for name, of in zip(columns, copies, strict=True) for text in of)]

    windows.write_results(runner, examples, len(records), ranges, output, rows)
    if jax.process_index() == 0:
        logging.info("wrote %d rows and their copies to %s", len(records), output_path)
    return output_path


def _check_paths(input_path: str, output_path: str) -> None:
    suffix = os.path.splitext(input_path.removesuffix(GZIP_SUFFIX))[1]
    if suffix not in _SUFFIXES:
        raise UserError(f"INPUT_PATH={input_path}: unknown format. Give one of {', '.join(_SUFFIXES)}.")
    if not output_path.endswith(suffix):
        raise UserError(f"OUTPUT_PATH={output_path}: INPUT_PATH is a {suffix} file. Give a file of the same format.")
    if os.path.abspath(input_path) == os.path.abspath(output_path):
        raise UserError(f"OUTPUT_PATH={output_path}: same file as INPUT_PATH. Give another file.")


def _columns(columns: str | Sequence[str | int]) -> tuple[str | int, ...]:
    """Returns names or positions of columns."""
    given = columns.split(",") if isinstance(columns, str) else list(columns)
    found = tuple(int(each) if isinstance(each, str) and each.isdecimal() else each for each in given)
    kinds = {type(each) for each in found}
    if len(kinds) != 1 or "" in found or len(set(found)) != len(found):
        raise UserError(f"COLUMNS={columns!r}: not different columns. Give names such as 'question,sentence'.")
    return found


def _read(path: str, columns: Sequence[str | int]) -> list[Record]:
    """Returns the rows of a table."""
    with paths.explain_path_errors("INPUT_PATH", path):
        text = decode(path, read_bytes(path))
    skipped: list[int] = []
    records = list(read_records(path, text, has_header=not isinstance(columns[0], int), skipped=skipped))
    if skipped:
        logging.warning("%s: %d rows with too few columns are skipped, such as line %d", path, len(skipped), skipped[0])
    if not records:
        raise UserError(f"INPUT_PATH={path}: the file has no rows. Give a file with at least one row.")
    return records


def _text(path: str, record: Record, column: str | int) -> str:
    """Returns the text in a column of a row."""
    text = record.values.get(column)
    if not isinstance(text, str):
        found = ", ".join(map(repr, record.values))
        problem = "not found" if text is None else f"{text!r:.80} is not text"
        raise UserError(f"{path}:{record.line}, COLUMNS: column {column!r}: {problem}. Columns of the row: {found}.")
    return text


def _examples(
    texts: Sequence[Sequence[str]],
    data: DataSource,
    config: ModelConfig,
    augmentation: Augmentation,
    vectors: WordVectors | None,
) -> MaskedWords:
    from data_tasks.augmentation import require_word_pieces, words_of

    max_length = getattr(config, "max_length", None)
    if max_length is None:
        raise UserError(f"MODEL: {type(config).__name__} is not an encoder with a maximum length. Give a BERT.")
    vocabulary = require_word_pieces(data.vocabularies()["targets"])
    data.check_vocabulary(config.vocab_size)
    return MaskedWords(texts, lambda texts: words_of(texts, vocabulary), vocabulary, augmentation, max_length, vectors)


def _fingerprint(
    loaded: Loaded,
    records: Sequence[Record],
    columns: Sequence[str | int],
    augmentation: Augmentation,
    glove_path: str | None,
    batch_size: int,
    seed: int,
) -> str:
    """Describes everything that the copies depend on, so that unfinished output of another command is not resumed."""
    values = json.dumps([list(record.values.items()) for record in records], ensure_ascii=False)
    digest = hashlib.sha256(values.encode()).hexdigest()[:16]
    settings = ", ".join(f"{name} {value}" for name, value in dataclasses.asdict(augmentation).items())
    return (
        f"{loaded.checkpoint_path}, vocabulary {getattr(loaded.data, 'vocabulary_path', None)}, "
        f"columns {list(columns)}, {settings}, vectors {glove_path}, batches of {batch_size}, seed {seed}, "
        f"input {digest}"
    )
