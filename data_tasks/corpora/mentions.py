r"""Documents in which the mentions of entities are marked, read from JSON lines.

    {"text": "Bob Dylan wrote Blowin' in the Wind.", "mentions": [[0, 9, "Q392"], [16, 35, "Q840083"]]}

A mention has the offsets of its first character and of the one after its last, and the name of an entity, or its
number from 0. In a marked document, \x1e ends a sentence, and \x1d encloses a mention, which begins with the number of
its entity from 1 and \x1f.
"""

import bisect
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from data_tasks.corpora import matching_files
from data_tasks.corpora.documents import TRAIN, VALIDATION, Corpus, split_by_hash
from data_tasks.corpora.text_lines import lines
from data_tasks.pretraining.sentences import Split
from t5x_like import paths
from t5x_like.data import npy_files
from t5x_like.data.records import read_bytes
from t5x_like.errors import UserError

SENTENCE, MENTION, NUMBER = b"\x1e", b"\x1d", b"\x1f"
_NO_MARKS = bytes.maketrans(SENTENCE + MENTION + NUMBER, b"   ")

# Start, end and number of a mention, in characters or bytes; entities are numbered from 1.
Mention = tuple[int, int, int]


def mark(text: bytes, mentions: Iterable[Mention], sentences: Sequence[bytes]) -> bytes:
    """Marks the sentences and mentions of a document. Mentions that overlap or are not in one sentence are left out.

    Args:
      text: the document, in UTF-8.
      mentions: its mentions, in bytes.
      sentences: its sentences, which are parts of the text, in order.
    """
    found, start = sorted(mentions), 0
    first, marked = [mention[0] for mention in found], []
    text = text.translate(_NO_MARKS)
    for sentence in sentences:
        start = text.index(sentence.translate(_NO_MARKS), start)
        end, pieces = start + len(sentence), []
        for begins, ends, number in found[bisect.bisect_left(first, start) : bisect.bisect_left(first, end)]:
            if begins < start or ends > end:
                continue
            pieces += [text[start:begins], MENTION, str(number).encode(), NUMBER, text[begins:ends], MENTION]
            start = ends
        marked.append(b"".join([*pieces, text[start:end]]))
        start = end
    return SENTENCE.join(marked)


def split_all(texts: Sequence[bytes], split: Split) -> Iterator[list[bytes]]:
    """Yields the sentences of each text; `split` consists of TensorFlow operations."""
    if texts:
        ds = tf.data.Dataset.from_tensor_slices(texts).map(split, num_parallel_calls=tf.data.AUTOTUNE)
        yield from (sentences.tolist() for sentences in ds.as_numpy_iterator())


@functools.lru_cache(maxsize=2)
def read(
    *,
    pattern: str,
    split: Split,
    entities_path: str,
    validation_pattern: str | None = None,
    validation_fraction: float = 0.02,
    text_column: str = "text",
    max_corpus_bytes: int = 4 << 30,
) -> Corpus:
    """Reads documents with mentions from the .jsonl files of a pattern.

    Args:
      pattern: files to read, a path that may contain *, ** and ?.
      split: splits a text into sentences with TensorFlow operations.
      entities_path: the names of the entities, one per line; see `read_names`.
      validation_pattern: validation files. Without them, documents are held out by a hash of their text.
      validation_fraction: fraction of the documents to hold out without `validation_pattern`.
      text_column: the field of a record that holds the text.
      max_corpus_bytes: maximum size of the files, all of which are held in memory.

    Returns:
      The corpus of marked documents.

    Raises:
      UserError: the pattern matches no file, or a record is invalid. The message names the file and the line.
    """
    if not pattern:
        raise UserError(
            "TASK_ARGUMENTS has no 'pattern', the .jsonl files of the task. Give 'pattern': 'wiki/*.jsonl'."
        )
    numbers = {name: number for number, name in enumerate(read_names(entities_path), 1)}
    counts: Counter[str] = Counter()

    def documents(files: Sequence) -> list[bytes]:
        found = list(_records(files, text_column, numbers, counts, _limit(pattern, max_corpus_bytes)))
        sentences = split_all([text for text, _ in found], split)
        return [mark(text, each, parts) for (text, each), parts in zip(found, sentences, strict=True)]

    chosen = matching_files.files(pattern)
    if validation_pattern:
        held_out = matching_files.files(validation_pattern)
        known = {file.path for file in held_out}
        chosen = [file for file in chosen if file.path not in known]
        splits: Mapping[str, Sequence[bytes]] = {TRAIN: documents(chosen), VALIDATION: documents(held_out)}
        chosen += held_out
    else:
        splits = split_by_hash(documents(chosen), validation_fraction)
    return Corpus("mentions", splits, f"{len(chosen)} files of {pattern}", dict(counts))


@functools.lru_cache(maxsize=2)
def read_names(path: str) -> list[str]:
    """Returns the names of entities, one per line of a file.

    Raises:
      UserError: the path is missing.
    """
    if not path:
        raise UserError("TASK_ARGUMENTS has no 'entities_path': the names of the entities, one per line. Give a path.")
    return read_bytes(path).decode().splitlines()


@functools.lru_cache(maxsize=2)
def read_vectors(path: str, entities: int) -> np.ndarray:
    """Returns the vectors of entities, float32 `[entities, size]`, from a .npy file.

    Args:
      path: the file.
      entities: number of entities.

    Raises:
      UserError: the path is missing, or the array has another shape.
    """
    if not path:
        raise UserError("TASK_ARGUMENTS has no 'vectors_path': a .npy file with a row per entity. Give a path.")
    if not paths.is_file(path):
        raise UserError(f"vectors_path={path!r}: file not found. Give a .npy file with a row per entity.")
    vectors = npy_files.parse(path, paths.read_bytes(path))
    if vectors.ndim != 2 or len(vectors) != entities:
        raise UserError(
            f"vectors_path={path!r}: shape {vectors.shape}, but entities_path has {entities} names. Give one row per "
            "name."
        )
    return vectors.astype(np.float32, copy=False)


def _limit(pattern: str, most: int) -> Callable[[int], None]:
    """Returns a function that counts bytes and raises beyond a limit."""
    size = 0

    def count(number: int) -> None:
        nonlocal size
        size += number
        if size > most:
            raise UserError(
                f"the files of {pattern!r} have more than max_corpus_bytes={most:,} bytes, which would be held in "
                "memory. Increase it."
            )

    return count


def _records(files, text_column, numbers, counts, count_bytes) -> Iterator[tuple[bytes, list[Mention]]]:
    """Yields text and mentions of each record that is not empty."""
    for file in files:
        for line_number, line in enumerate(lines(file, count_bytes), 1):
            if not line.strip():
                continue
            where = f"{file.path}:{line_number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where} is not JSON: {error}. Correct the line.") from error
            text = record.get(text_column) if isinstance(record, dict) else None
            if not isinstance(text, str):
                raise UserError(
                    f"{where} has no text in the field {text_column!r} (task_arguments text_column). Add it."
                )
            if not text.strip():
                counts["empty"] += 1
                continue
            found = parse(text, record.get("mentions", []), numbers, counts, where)
            yield text.encode(errors="replace"), list(in_bytes(text, found))


def parse(
    text: str, given: Iterable[Any], numbers: Mapping[str, int], counts: Counter, where: str
) -> Iterator[Mention]:
    """Yields the mentions of a record, in characters.

    Args:
      text: the text.
      given: `[start, end, entity]` for each mention.
      numbers: name of an entity -> its number from 1.
      counts: number of mentions that are left out. It is updated in place.
      where: file and line, for messages.

    Raises:
      UserError: a mention is invalid.
    """
    for mention in given:
        if not isinstance(mention, list) or len(mention) != 3:
            raise UserError(f"{where}: mention {mention!r:.80} is not [start, end, entity]. Correct it.")
        start, end, entity = mention
        check_span(text, (start, end), "mention", where)
        number = numbers.get(entity) if isinstance(entity, str) else entity + 1
        if number is None or not 0 < number <= len(numbers):
            counts["mentions of entities that are not in entities_path"] += 1
            continue
        yield start, end, number


def check_span(text: str, span: Any, kind: str, where: str) -> None:
    """Checks the first character of a span and the one after its last.

    Args:
      text: the text.
      span: the two offsets.
      kind: what the span is, for messages.
      where: file and line, for messages.

    Raises:
      UserError: they are not offsets in the text.
    """
    is_pair = isinstance(span, Sequence) and len(span) == 2 and all(type(each) is int for each in span)
    if not is_pair or not 0 <= span[0] < span[1] <= len(text):
        raise UserError(
            f"{where}: {kind} {span!r:.80} does not have offsets [start, end] in a text of {len(text)} characters. "
            "Correct it."
        )


def in_bytes(text: str, found: Iterable[Mention]) -> Iterator[Mention]:
    """Converts the offsets of mentions from characters to bytes in UTF-8."""
    for start, end, number in found:
        before = len(text[:start].encode(errors="replace"))
        yield before, before + len(text[start:end].encode(errors="replace")), number
