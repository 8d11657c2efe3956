"""`t5x_like vocabulary`: trains a vocabulary on text files."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from absl import logging

from t5x_like import beam_errors, paths
from t5x_like.data import skipped_records
from t5x_like.data.skipped_records import SkippedRecords
from t5x_like.errors import UserError

DEFAULT_DIRECTORY = "vocabulary"
# The tasks that read a vocabulary of each kind.
TASKS = {
    "sentencepiece": "text_files_span_corruption, text_files_causal_lm, text_files_masked_lm",
    "sentencepiece_bpe": "text_files_causal_lm, text_files_span_corruption, text_files_masked_lm",
    "wordpiece": "text_files_sentence_pairs, text_files_masked_lm",
    "byte_bpe": "text_files_causal_lm, text_files_causal_lm_byte_bpe",
    "bytes": "text_files_span_corruption, text_files_causal_lm",
    "albert": "text_files_sentence_order, text_files_masked_lm",
    "xlnet": "text_files_xlnet, text_files_masked_lm, text_files_causal_lm",
    "bigbird": "text_files_masked_lm",
    "mt5": "text_files_span_corruption",
    "words": "text_files_words, text_files_causal_lm, text_files_bidirectional_words, text_files_sentence_triples",
}
PROGRESS_SECONDS = 15.0


def vocabulary(
    *,
    pattern: str,
    kind: str = "sentencepiece",
    size: int | None = None,
    output: str | None = None,
    lower_case: bool | None = None,
    text_column: str = "text",
    on_bad_record: Literal["error", "skip"] = "error",
    max_bytes: int = 256 << 20,
    min_count: int | None = None,
    domains: Mapping[str, str] | None = None,
    beam: Sequence[str] | None = None,
    overwrite: bool = False,
) -> str:
    """Trains a vocabulary and writes the files that `VOCABULARY_PATH` of a task refers to.

    Args:
      pattern: Files to train on, in a format that the tasks text_files_* read: a local path or bucket URL that may
        contain *, ** and ?.
      kind: Kind of vocabulary: `sentencepiece` (unigram, T5), `sentencepiece_bpe`, `wordpiece` (BERT), `byte_bpe`
        (GPT-2) or `bytes` (ByT5), or a SentencePiece model with the special pieces of `albert`, `xlnet`, `bigbird` or
        `mt5`, or `words` with their counts (word2vec, GloVe), of which all text is counted.
      size: Number of pieces, including special ones; by default 32,000, 384 for `bytes`, and all words for `words`.
      output: Directory to write to; by default `vocabulary/KIND`.
      lower_case: For `wordpiece`, `albert` and `xlnet`: whether to lower-case, by default as the published models.
      text_column: Column, or field of a record, that contains the text.
      on_bad_record: What to do with a record whose text cannot be read: raise an error, or skip and count it.
      max_bytes: Maximum size of the text. Larger text is reduced to a uniform sample of its documents.
      min_count: For `words`: rarer words are left out; by default 5, as in word2vec.
      domains: Languages or domains with their files, for which coverage and fertility are printed.
      beam: Options of an Apache Beam pipeline that draws the sample; None to read the files in this process.
      overwrite: Whether to write to a directory that is not empty.

    Returns:
      The value for `vocabulary_path`: the file, or the directory of a vocabulary with several files.

    Raises:
      UserError: no file matches, the size does not suit the text, a library is missing, or the directory is not
        writable.
      RunFailed: the storage of the directory is full or cannot be written.
    """
    from data_tasks.vocabulary_training import sample, trainers

    # ---- settings ----------------------------------------------------------------------------------------------------
    if kind not in trainers.KINDS:
        raise UserError(f"KIND={kind}: unknown kind of vocabulary. Give one of {', '.join(trainers.KINDS)}.")
    size = trainers.default_size(kind) if size is None else size
    for macro, value in (("SIZE", size), ("MAX_BYTES", max_bytes), ("MIN_COUNT", min_count)):
        if value is not None and value < 1:
            raise UserError(f"{macro}={value} is not positive. Give a positive integer.")
    trainers.check_settings(kind, min_count=min_count, beam=beam, domains=domains)
    beam_errors.check_options(beam)
    _check_domains(domains)
    directory = output or os.path.join(DEFAULT_DIRECTORY, kind)
    paths.check_new_directory("OUTPUT_PATH", directory, overwrite=overwrite)  # before minutes of work

    # ---- text --------------------------------------------------------------------------------------------------------
    reading = {"text_column": text_column, "on_bad_record": on_bad_record}
    skipped = SkippedRecords()
    if kind == trainers.WORDS:
        documents = sample.read_all(pattern, skipped, **reading)
    else:
        documents = sample.draw(pattern, max_bytes, skipped, beam=beam, directory=directory, **reading).documents

    # ---- training ----------------------------------------------------------------------------------------------------
    given = {"lower_case": lower_case, "min_count": min_count}
    options = {name: value for name, value in given.items() if value is not None}
    unit = "words" if kind == trainers.WORDS else "pieces"
    with _progress(f"training a vocabulary of {'all' if size is None else f'{size:,}'} {unit} ({kind})"):
        files = trainers.KINDS[kind](documents, size, **options)
    size = trainers.count_ids(files) if kind == trainers.WORDS else size

    # ---- writing -----------------------------------------------------------------------------------------------------
    _write(directory, files)
    path = trainers.path_of(directory, files)
    path = str(paths.local(path).absolute()) if paths.is_local(path) else path
    unit = "ids" if kind == trainers.WORDS else unit  # words and special ids
    print(f"wrote {size:,} {unit}: {', '.join(paths.join(directory, name) for name in files)}")
    if counts := skipped.bad:
        print(f"skipped {skipped_records.describe(counts)}")
    print(f"tasks: {TASKS[kind]}, with DATA_FILES = {pattern!r}, VOCABULARY_PATH = {path!r}")
    print(f"model: {trainers.models_for(kind, size)}")
    if domains:
        _print_coverage(path, domains, **reading)
    return path


def _check_domains(domains: Mapping[str, str] | None) -> None:
    """Checks before the training that the files of all domains exist."""
    from data_tasks.corpora import matching_files

    if domains is not None and not isinstance(domains, Mapping):
        raise UserError(f"DOMAINS={domains!r} is not a dictionary. Give one such as {{'de': 'de/*.txt'}}.")
    for pattern in (domains or {}).values():
        matching_files.files(pattern)


def _write(directory: str, files: Mapping[str, bytes]) -> None:
    """Writes the files of a vocabulary. If one cannot be written, those before it are deleted."""
    written = []
    try:
        for name, contents in files.items():
            paths.write_output("OUTPUT_PATH", paths.join(directory, name), contents)
            written.append(name)
    except BaseException:
        for name in written:
            paths.remove(paths.join(directory, name))
        raise


def _print_coverage(path: str, domains: Mapping[str, str], **reading: str) -> None:
    """Prints a table with the coverage and the fertility of the vocabulary in each domain."""
    from data_tasks.vocabulary_training import coverage

    names = coverage.Coverage._fields
    print("  ".join([f"{'domain':16}", *(name.replace("_", " ") for name in names)]))
    for domain, found in coverage.of_domains(path, domains, **reading).items():
        shown = (f"{value:{len(name)}.3f}" for name, value in zip(names, found, strict=True))
        print("  ".join([f"{domain:16}", *shown]))


@contextlib.contextmanager
def _progress(task: str) -> Iterator[None]:
    """Logs the elapsed time periodically, because the library does not report progress."""
    started, done = time.monotonic(), threading.Event()

    def report():
        while not done.wait(PROGRESS_SECONDS):
            logging.info("%s: %.0f s so far", task, time.monotonic() - started)

    logging.info("%s", task)
    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
