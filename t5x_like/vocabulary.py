"""`t5x_like vocabulary`: learns a vocabulary from the text files that a run will be trained on."""

import contextlib
import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from absl import logging

from t5x_like import paths
from t5x_like.errors import UserError

# The folder of vocabularies that nobody has named a place for.
FOLDER = "vocabulary"
# Which task reads a vocabulary of each kind, and what its argument `vocabulary_path` names: a file or the folder.
TASKS = {
    "sentencepiece": "text_files_span_corruption, text_files_causal_lm, text_files_masked_lm",
    "wordpiece": "text_files_sentence_pairs",
    "byte_bpe": "text_files_causal_lm_byte_bpe",
}
PROGRESS_SECONDS = 15.0


def vocabulary(
    *,
    pattern: str,
    kind: Literal["sentencepiece", "wordpiece", "byte_bpe"] = "sentencepiece",
    size: int = 32000,
    output: str | None = None,
    lower_case: bool | None = None,
    json_field: str = "text",
    max_bytes: int = 256 << 20,
    overwrite: bool = False,
) -> str:
    """Learns a vocabulary and writes it where `vocabulary_path` of the `text_files_*` tasks can name it.

    Args:
      pattern: the .txt and .jsonl files to learn from, as of the tasks: a path with *, ** and ?, local or in a bucket.
      kind: `sentencepiece` (T5), `wordpiece` (BERT) or `byte_bpe` (GPT-2).
      size: pieces, special ones included.
      output: the folder to write to; `vocabulary/KIND` by default.
      lower_case: of `wordpiece`, whether case and accents are removed; True by default.
      json_field: of a .jsonl record, the field that holds the text.
      max_bytes: text to learn from; of more, an even sample of the documents.
      overwrite: whether a vocabulary that is there already is replaced.

    Returns:
      What `vocabulary_path` has to be: the file, or the folder where there are several.

    Raises:
      UserError: no file matches, the size does not suit the text, or the folder cannot be written.
    """
    from data_tasks.vocabularies import own

    # ---- what to write, before anything is read ----------------------------------------------------------------------
    if kind not in own.KINDS:
        raise UserError(f"KIND={kind}: unknown kind of vocabulary. Give one of {', '.join(own.KINDS)}.")
    if size < 1 or max_bytes < 1:
        raise UserError(f"SIZE={size}, MAX_BYTES={max_bytes}: must be positive integers.")
    folder = output or os.path.join(FOLDER, kind)
    _check_output(folder, overwrite)

    # ---- text --------------------------------------------------------------------------------------------------------
    documents = _read(pattern, json_field, max_bytes)

    # ---- learning ----------------------------------------------------------------------------------------------------
    options = {} if lower_case is None else {"lower_case": lower_case}
    with _progress(f"learning {size:,} pieces ({kind})"):
        files = own.KINDS[kind](documents, size, **options)

    # ---- writing -----------------------------------------------------------------------------------------------------
    try:
        for name, contents in files.items():
            paths.write_atomic(paths.join(folder, name), contents)
    except OSError as error:
        raise UserError(f"OUTPUT_PATH={folder}: cannot be written ({error}). Name another folder.") from error
    path = folder if len(files) > 1 else paths.join(folder, next(iter(files)))
    path = str(paths.local(path).absolute()) if paths.is_local(path) else path
    print(f"wrote {size:,} pieces: {', '.join(paths.join(folder, name) for name in files)}")
    print(f"tasks: {TASKS[kind]}, with TASK_ARGUMENTS = {{'pattern': {pattern!r}, 'vocabulary_path': {path!r}}}")
    print(f"model: {own.models_for(kind, size)}")
    return path


def _check_output(folder: str, overwrite: bool) -> None:
    """Refuses a folder that is taken or cannot be made, before the work of minutes."""
    if paths.is_local(folder):
        try:
            paths.local(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"OUTPUT_PATH={folder}: cannot be made ({error}). Name another folder.") from error
        if not os.access(paths.local(folder), os.W_OK):
            raise UserError(f"OUTPUT_PATH={folder}: not writable. Name another folder.")
    names = paths.listdir(folder) if paths.exists(folder) else []
    if names and not overwrite:
        raise UserError(
            f"OUTPUT_PATH={folder}: holds {', '.join(names[:3])} already. Name another folder, or give --overwrite."
        )


def _read(pattern: str, json_field: str, max_bytes: int) -> list[str]:
    """The documents of the files, or an even sample of them."""
    from data_tasks import text_files

    files = text_files.files(pattern)
    total = text_files.size_of(files)
    kept_share = min(1.0, max_bytes / max(total, 1))
    counts: Counter[str] = Counter()
    documents: list[str] = []
    read = kept = 0
    said = time.monotonic()
    for document in text_files.documents(files, json_field=json_field, counts=counts):
        read += len(document)
        if _hash_fraction(document) < kept_share and kept < max_bytes:
            documents.append(document.decode())
            kept += len(document)
        if time.monotonic() - said >= PROGRESS_SECONDS:
            logging.info("read %.0f MB of text of %d files", read / 1e6, len(files))
            said = time.monotonic()
    skipped = "".join(f"; {number:,} {reason}" for reason, number in counts.items())
    logging.info(
        "%d files of %s: %.1f MB of text, learning from %s documents of %.1f MB%s",
        *(len(files), pattern, read / 1e6, f"{len(documents):,}", kept / 1e6, skipped),
    )
    if not documents:
        raise UserError(f"PATTERN={pattern}: its {len(files)} files hold no text. Name files with text in UTF-8.")
    return documents


def _hash_fraction(document: bytes) -> float:
    """A number in [0, 1) that depends on the text alone, so that the sample is the same each time."""
    return int.from_bytes(hashlib.blake2b(document, digest_size=4, person=b"vocabulary").digest()) / 2**32


@contextlib.contextmanager
def _progress(what: str) -> Iterator[None]:
    """Logs now and then that work goes on whose library says nothing itself."""
    started, done = time.monotonic(), threading.Event()

    def say():
        while not done.wait(PROGRESS_SECONDS):
            logging.info("%s: %.0f s so far", what, time.monotonic() - started)

    logging.info("%s", what)
    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
