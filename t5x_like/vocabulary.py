"""`t5x_like vocabulary`: trains a vocabulary on text files."""

import contextlib
import hashlib
import heapq
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Literal

from absl import logging

from t5x_like import paths
from t5x_like.errors import UserError

DEFAULT_DIRECTORY = "vocabulary"
# The tasks that read a vocabulary of each kind.
TASKS = {
    "sentencepiece": "text_files_span_corruption, text_files_causal_lm, text_files_masked_lm",
    "wordpiece": "text_files_sentence_pairs, text_files_masked_lm",
    "byte_bpe": "text_files_causal_lm, text_files_causal_lm_byte_bpe",
}
PROGRESS_SECONDS = 15.0


def vocabulary(
    *,
    pattern: str,
    kind: Literal["sentencepiece", "wordpiece", "byte_bpe"] = "sentencepiece",
    size: int = 32000,
    output: str | None = None,
    lower_case: bool | None = None,
    text_column: str = "text",
    on_bad_record: Literal["error", "skip"] = "error",
    max_bytes: int = 256 << 20,
    overwrite: bool = False,
) -> str:
    """Trains a vocabulary and writes the files that `VOCABULARY_PATH` of a task refers to.

    Args:
      pattern: Files to train on, in a format that the tasks text_files_* read: a local path or bucket URL that may
        contain *, ** and ?.
      kind: Kind of vocabulary: `sentencepiece` (T5), `wordpiece` (BERT) or `byte_bpe` (GPT-2).
      size: Number of pieces, including special ones.
      output: Directory to write to; by default `vocabulary/KIND`.
      lower_case: For `wordpiece` only: whether to lower-case and strip accents, by default True.
      text_column: Column, or field of a record, that contains the text.
      on_bad_record: What to do with a record whose text cannot be read: raise an error, or skip and count it.
      max_bytes: Maximum size of the text. Larger text is reduced to a uniform sample of its documents.
      overwrite: Whether to write to a directory that is not empty.

    Returns:
      The value for `vocabulary_path`: the file, or the directory of a vocabulary with several files.

    Raises:
      UserError: no file matches, the size does not suit the text, a library is missing, or the directory is not
        writable.
      RunFailed: the storage of the directory is full or cannot be written.
    """
    from data_tasks.vocabularies import trainers

    # ---- settings ----------------------------------------------------------------------------------------------------
    if kind not in trainers.KINDS:
        raise UserError(f"KIND={kind}: unknown kind of vocabulary. Give one of {', '.join(trainers.KINDS)}.")
    for macro, value in (("SIZE", size), ("MAX_BYTES", max_bytes)):
        if value < 1:
            raise UserError(f"{macro}={value} is not positive. Give a positive integer.")
    trainers.check_installed(kind)
    directory = output or os.path.join(DEFAULT_DIRECTORY, kind)
    paths.check_new_directory("OUTPUT_PATH", directory, overwrite=overwrite)  # before minutes of work

    # ---- text --------------------------------------------------------------------------------------------------------
    documents = _read(pattern, text_column, on_bad_record, max_bytes)

    # ---- training ----------------------------------------------------------------------------------------------------
    options = {} if lower_case is None else {"lower_case": lower_case}
    with _progress(f"training a vocabulary of {size:,} pieces ({kind})"):
        files = trainers.KINDS[kind](documents, size, **options)

    # ---- writing -----------------------------------------------------------------------------------------------------
    _write(directory, files)
    path = directory if len(files) > 1 else paths.join(directory, next(iter(files)))
    path = str(paths.local(path).absolute()) if paths.is_local(path) else path
    print(f"wrote {size:,} pieces: {', '.join(paths.join(directory, name) for name in files)}")
    print(f"tasks: {TASKS[kind]}, with DATA_FILES = {pattern!r}, VOCABULARY_PATH = {path!r}")
    print(f"model: {trainers.models_for(kind, size)}")
    return path


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


def _read(pattern: str, text_column: str, on_bad_record: str, max_bytes: int) -> list[str]:
    """Reads the documents of the files, or a uniform sample of them."""
    from data_tasks.corpora import matching_files, text_files

    files = matching_files.files(pattern)
    # The documents with the smallest hashes, as (-hash, number, document): the first one is left out first.
    kept: list[tuple[float, int, bytes]] = []
    read = size = 0
    logged = time.monotonic()
    documents = text_files.documents(files, text_column=text_column, on_bad_record=on_bad_record)
    for number, document in enumerate(documents):
        read += len(document)
        size += len(document)
        heapq.heappush(kept, (-_hash_fraction(document), number, document))
        while size > max_bytes and len(kept) > 1:
            size -= len(heapq.heappop(kept)[2])
        if time.monotonic() - logged >= PROGRESS_SECONDS:
            logging.info("read %.0f MB of text from %d files", read / 1e6, len(files))
            logged = time.monotonic()
    sample = [document.decode() for _, _, document in sorted(kept, key=lambda each: each[1])]
    logging.info(
        "%d files of %s: %.1f MB of text, training on %s documents of %.1f MB",
        *(len(files), pattern, read / 1e6, f"{len(sample):,}", size / 1e6),
    )
    if not sample:
        raise UserError(f"PATTERN={pattern}: no text found in {len(files)} files. Give files with UTF-8 text.")
    return sample


def _hash_fraction(document: bytes) -> float:
    """Hashes a document to [0, 1), so that the sample is the same each time."""
    return int.from_bytes(hashlib.blake2b(document, digest_size=4, person=b"vocabulary").digest()) / 2**32


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
