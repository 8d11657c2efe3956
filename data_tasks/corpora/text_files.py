r"""The corpus `text_files`: all .txt and .jsonl files that a pattern matches.

    task_arguments = {"pattern": "books/*.txt"}
    task_arguments = {"pattern": "gs://…/train-*.jsonl.gz", "validation_pattern": "gs://…/validation.jsonl.gz"}

Each line of a .jsonl file is one document. A .txt file is split into documents of a fixed number of lines, in the order
of the file. Line ends become \n and byte-order marks are removed. Documents longer than `max_document_bytes` are split,
so that a file without line ends is processed as fast as any other. Every process reads all files into memory once.
"""

import codecs
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import fsspec
import seqio

from data_tasks import vocabularies
from data_tasks.corpora.documents import TRAIN, VALIDATION, Corpus, DocumentSource, split_by_hash
from data_tasks.corpora.text_lines import BYTE_ORDER_MARK, COMPRESSIONS, lines
from data_tasks.pretraining.span_corruption import add_span_corruption_task
from data_tasks.vocabularies.late import LateVocabulary, sentencepiece_model
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

TASK = "text_files_span_corruption"
MAX_DOCUMENT_BYTES = 1 << 15
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # UTF-32 begins with the same bytes on most systems

_DEFAULTS = dict(
    # Files to read: a path that may contain *, ** and ?, local or in a bucket (any fsspec path).
    pattern="",
    # Validation files. Without them, documents are held out by a hash of their text.
    validation_pattern=None,
    # Fraction of the documents to hold out without validation_pattern.
    validation_fraction=0.02,
    # The field of a .jsonl record that holds the text.
    json_field="text",
    # Lines of a .txt file per document.
    lines_per_document=64,
    # Longer documents are split, between lines or words where possible. Documents are tokenized and corrupted in
    # batches, so the first batch takes several seconds per 10 MB.
    max_document_bytes=MAX_DOCUMENT_BYTES,
    # Maximum size of the text, all of which is held in memory.
    max_corpus_bytes=4 << 30,
    # A Hugging Face directory, or a SentencePiece model. Default: the model shipped with this package, which can encode
    # any text.
    vocabulary_path=None,
)


def declare(
    task: str, make_vocabulary: Callable[[Callable[[], str | None]], seqio.Vocabulary] | None = None
) -> tuple[DocumentSource, seqio.Vocabulary]:
    """Declares the arguments of a task over text files and returns its source and vocabulary.

    Args:
      task: the name that the task will be registered under.
      make_vocabulary: makes the vocabulary, given a function that returns the argument `vocabulary_path` (None if not
        given). Default: from a Hugging Face directory or a SentencePiece model, the shipped one without
        `vocabulary_path`.

    Returns:
      The source and the vocabulary. Both use the current values of the arguments.
    """
    values = task_arguments.declare(task, **_DEFAULTS)

    def current() -> Corpus:
        return read(**{name: value for name, value in values.items() if name != "vocabulary_path"})

    make_vocabulary = make_vocabulary or _sentencepiece
    return DocumentSource(current), make_vocabulary(lambda: values["vocabulary_path"])


def _sentencepiece(path: Callable[[], str | None]) -> LateVocabulary:
    return LateVocabulary(lambda: path() or str(vocabularies.PYTHON_DOCS_MODEL), read_other=sentencepiece_model)


@functools.lru_cache(maxsize=2)
def read(
    *,
    pattern: str,
    validation_pattern: str | None = None,
    validation_fraction: float = 0.02,
    json_field: str = "text",
    lines_per_document: int = 64,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    max_corpus_bytes: int = 4 << 30,
) -> Corpus:
    """Reads the files of a pattern.

    Args:
      pattern: files to read, a path that may contain *, ** and ?.
      validation_pattern: validation files. Without them, documents are held out by a hash of their text.
      validation_fraction: fraction of the documents to hold out without `validation_pattern`.
      json_field: the field of a .jsonl record that holds the text.
      lines_per_document: lines of a .txt file per document.
      max_document_bytes: longer documents are split.
      max_corpus_bytes: maximum size of the text.

    Returns:
      The corpus.

    Raises:
      UserError: the pattern matches no file, or an argument or file is invalid. The message names the file and line.
    """
    if not pattern:
        raise UserError(
            "TASK_ARGUMENTS has no 'pattern', the text files of the task. Give "
            "--gin.TASK_ARGUMENTS=\"{'pattern': 'books/*.txt'}\", or '*.jsonl'."
        )
    if lines_per_document < 1 or max_document_bytes < 16:
        raise UserError(f"{lines_per_document=} must be at least 1 and {max_document_bytes=} at least 16")
    counts: Counter[str] = Counter()

    def read_all(chosen: Sequence) -> list[bytes]:
        size = 0

        def count_bytes(number_of_bytes: int) -> None:
            nonlocal size
            size += number_of_bytes
            if size > max_corpus_bytes:
                raise UserError(
                    f"the files of {pattern!r} hold more than max_corpus_bytes={max_corpus_bytes:,} bytes of text, "
                    "which would be held in memory. Increase it, or prepare the corpus with TFDS."
                )

        found = documents(
            chosen,
            json_field=json_field,
            lines_per_document=lines_per_document,
            max_document_bytes=max_document_bytes,
            counts=counts,
            count_bytes=count_bytes,
        )
        return list(found)

    chosen = files(pattern)
    if validation_pattern:
        held_out = files(validation_pattern)
        paths = {file.path for file in held_out}
        chosen = [file for file in chosen if file.path not in paths]
        splits = {TRAIN: read_all(chosen), VALIDATION: read_all(held_out)}
        chosen += held_out
    else:
        splits = split_by_hash(read_all(chosen), validation_fraction)
    origin = f"{len(chosen)} files of {pattern}" + (f" and {validation_pattern}" if validation_pattern else "")
    return Corpus(name="text_files", splits=splits, origin=origin, skipped=dict(counts))


def documents(
    chosen: Iterable,
    *,
    json_field: str = "text",
    lines_per_document: int = 64,
    max_document_bytes: int = MAX_DOCUMENT_BYTES,
    counts: Counter[str],
    count_bytes: Callable[[int], None] = lambda number_of_bytes: None,
) -> Iterator[bytes]:
    """Yields the documents of files in order, in UTF-8.

    Args:
      chosen: files, see `files`.
      json_field: the field of a .jsonl record that holds the text.
      lines_per_document: lines of a .txt file per document.
      max_document_bytes: longer documents are split.
      counts: number of skipped documents by reason. It is updated in place.
      count_bytes: called with the number of bytes of each line that was read; see `text_lines.lines`.

    Yields:
      UTF-8 documents.

    Raises:
      UserError: a file is invalid. The message names the file and the line.
    """
    for file in chosen:
        for raw in _records(file, json_field, lines_per_document, count_bytes):
            yield from _usable(raw, max_document_bytes, counts)


def total_bytes(chosen: Iterable) -> int:
    """Returns the total stored size of files in bytes; see `files`."""
    return sum(file.fs.size(file.path) or 0 for file in chosen)


def files(pattern: str) -> list:
    """Returns the files that a pattern matches, sorted by path.

    Args:
      pattern: a path that may contain *, ** and ?, local or in a bucket.

    Returns:
      Files to open, decompressed if needed.

    Raises:
      UserError: the pattern matches no file, or a file is neither text nor JSON lines.
    """
    filesystem, path = fsspec.url_to_fs(pattern)
    paths = sorted(found for found in filesystem.glob(path) if filesystem.isfile(found))
    if not paths:
        raise UserError(
            f"pattern {pattern!r}: no file matches {filesystem.unstrip_protocol(path)}. Give an existing file, or a "
            "pattern such as 'books/*.txt'."
        )
    for found in paths:
        if not _kind(found):
            raise UserError(f"{found}: only .txt and .jsonl files are supported (also with {' '.join(COMPRESSIONS)})")
    return [fsspec.core.OpenFile(filesystem, found, "rb") for found in paths]


def _kind(path: str) -> str | None:
    for suffix in COMPRESSIONS:
        path = path.removesuffix(suffix)
    return next((kind for kind in (".txt", ".jsonl") if path.endswith(kind)), None)


def _records(file, json_field: str, lines_per_document: int, count_bytes: Callable[[int], None]) -> Iterator[bytes]:
    """Yields the documents of a file without validation."""
    found = lines(file, count_bytes)
    first = next(found, b"")
    if first.startswith(_UTF_16_MARKS):
        raise UserError(
            f"{file.path}: the text is UTF-16. Convert it to UTF-8, for example with iconv -f UTF-16 -t UTF-8."
        )
    found = itertools.chain([first] if first else [], found)
    if _kind(file.path) == ".txt":
        while block := b"".join(itertools.islice(found, lines_per_document)):
            yield block
        return
    for number, line in enumerate(found, 1):
        if line.strip():
            yield _text_of(line, json_field, f"{file.path}:{number}")


def _text_of(line: bytes, json_field: str, where: str) -> bytes:
    try:
        record = json.loads(line)
    except UnicodeDecodeError:
        return line  # not UTF-8: counted and skipped later like any other such document
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or thousands of brackets
        raise UserError(f"{where} is not JSON: {error}") from error
    if not isinstance(record, dict) or json_field not in record:
        fields = sorted(record) if isinstance(record, dict) else f"a {type(record).__name__}"
        raise UserError(f"{where} has no field {json_field!r} (task_arguments json_field), only {fields}")
    if not isinstance(record[json_field], str):
        raise UserError(f"{where}: the field {json_field!r} is {record[json_field]!r:.80}, not a string")
    text = record[json_field].removeprefix(BYTE_ORDER_MARK.decode()).replace("\r\n", "\n").replace("\r", "\n")
    # JSON may contain a lone surrogate, which is not valid UTF-8.
    return text.encode("utf-8", errors="surrogatepass")


def _usable(raw: bytes, max_document_bytes: int, counts: Counter) -> Iterator[bytes]:
    """Yields the document, in pieces if it is too long. Documents that are empty or not UTF-8 are counted instead."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        counts["not valid UTF-8"] += 1
        return
    if not raw.strip():
        counts["empty"] += 1
        return
    if len(raw) > max_document_bytes:
        counts["longer than max_document_bytes (cut, not skipped)"] += 1
    start = 0
    while len(raw) - start > max_document_bytes:
        end = _split_point(raw, start, start + max_document_bytes)
        yield raw[start:end]
        start = end
    yield raw[start:]


def _split_point(raw: bytes, start: int, limit: int) -> int:
    """Returns where to split: after the last line or word before the limit, otherwise between two characters."""
    for separator in (b"\n", b" "):
        if (found := raw.rfind(separator, (start + limit) // 2, limit)) >= 0:
            return found + 1
    while raw[limit] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        limit -= 1
    return limit


add_span_corruption_task(TASK, *declare(TASK))
