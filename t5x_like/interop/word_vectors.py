"""Files of word vectors: the text and binary formats of word2vec, GloVe and fastText, which gensim and spaCy read.

| file | format |
|---|---|
| `.vec`, `.txt` | a line with the number of words and of features, then a line per word: word2vec and fastText |
| `.glove.txt` | a line per word, without the first line: GloVe. Any text file without the first line is read, too |
| `.bin` | the same first line, then each word, a space, and its numbers as float32: word2vec |

Source: `word2vec.c` of Mikolov et al. (2013).
"""

import codecs
import itertools
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

import fsspec
import numpy as np
from absl import logging
from jaxtyping import Float32

from t5x_like import limits, paths
from t5x_like.data.vector_text import format_vector
from t5x_like.errors import UserError

SUFFIXES = (".vec", ".txt", ".bin")
GLOVE_SUFFIX = ".glove.txt"
_BINARY = ".bin"


class Vectors(NamedTuple):
    """Words and their vectors.

    Attributes:
      words: The words, each once.
      vectors: `[words, embed]`.
    """

    words: tuple[str, ...]
    vectors: Float32[np.ndarray, "words embed"]


def has_suffix(path: str) -> bool:
    """Returns whether a path has the suffix of a file of word vectors."""
    return path.endswith(SUFFIXES)


def read(
    path: str, embed_dim: int | None = None, *, setting: str = "CHECKPOINT_PATH", limit: int | None = None
) -> Vectors:
    """Reads a file of word vectors.

    Of a word that occurs several times, the first vector is kept. Vectors without a word are left out.

    Args:
      path: The file, local or in a bucket.
      embed_dim: Expected number of features; None for any.
      setting: The setting that names the file, for messages.
      limit: Maximum number of words to read, the first ones; None for all.

    Raises:
      UserError: The file is not found, incomplete or invalid, or has another number of features.
    """
    with paths.explain_path_errors(setting, path):
        if path.endswith(_BINARY):
            found = _from_binary(path, paths.read_bytes(path), limit)
        else:
            with fsspec.open(path, "rb", compression="infer") as file:
                found = _from_text(path, _lines(path, file), limit)
    first: dict[str, int] = {}
    for index, word in enumerate(found.words):
        first.setdefault(word, index)
    if first.pop("", None) is not None:  # no text has this word
        logging.warning("%s: %d vectors have no word and are left out", path, found.words.count(""))
    if not first:
        raise UserError(f"{path}: no vectors found. Give a file with a word per line.")
    vectors = found.vectors[list(first.values())]
    if not np.isfinite(vectors).all():
        raise UserError(f"{path}: a value is not finite. Give a complete file.")
    if embed_dim is not None and vectors.shape[1] != embed_dim:
        size = vectors.shape[1]
        raise UserError(f"{path}: vectors of {size} features, but embed_dim={embed_dim}. Give a file of this size.")
    return Vectors(tuple(first), vectors)


def _header(path: str, line: bytes) -> tuple[int, int]:
    """Returns the number of words and of features in the first line."""
    fields = line.split()
    if len(fields) != 2 or not all(map(limits.is_count, fields)) or int(fields[1]) < 1:
        raise UserError(f"{path}: the first line {line[:40]!r} is not the number of words and of features.")
    return int(fields[0]), int(fields[1])


def _from_binary(path: str, contents: bytes, limit: int | None) -> Vectors:
    end = contents.find(b"\n")
    number, dim = _header(path, contents[: max(end, 0)])
    at, words = end + 1, []
    number = number if limit is None else min(number, limit)
    if (needed := 4 * number * dim) > len(contents):
        raise UserError(
            f"{path}: {len(contents):,} bytes, but {number:,} vectors of {dim} features have {needed:,}. The file is "
            "truncated; download it again."
        )
    vectors = np.zeros((number, dim), np.float32)
    for index in range(number):
        space = contents.find(b" ", at)
        stop = space + 1 + 4 * dim
        if space < 0 or stop > len(contents):
            raise UserError(f"{path}: ends in word {index + 1} of {number}. The file is truncated; download it again.")
        # word2vec ends each vector with a line break, gensim does not.
        words.append(_decoded(path, contents[at:space].lstrip(b"\n")))
        vectors[index] = np.frombuffer(contents, "<f4", dim, space + 1)
        at = stop
    return Vectors(tuple(words), vectors)


def _lines(path: str, file: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a file.

    Raises:
      UserError: A line is longer than `limits.VECTOR_BYTES`.
    """
    while line := file.readline(limits.VECTOR_BYTES):
        if len(line) == limits.VECTOR_BYTES:
            raise UserError(f"{path}: a line of {len(line):,} bytes or more, not a word and its vector. Correct it.")
        yield line


def _from_text(path: str, file: Iterable[bytes], limit: int | None) -> Vectors:
    lines, number, dim = iter(file), None, None
    header = next(lines, b"").removeprefix(codecs.BOM_UTF8)
    if len(first := header.split()) == 2 and all(field.isdigit() for field in first):
        number, dim = _header(path, header)
    else:
        lines = itertools.chain([header] if header else [], lines)
    words, rows = [], []
    for index, line in enumerate(itertools.islice(lines, limit), 1 if number is None else 2):
        fields = line.rstrip(b" \r\n").split(b" ")
        dim = len(fields) - 1 if dim is None else dim
        if len(fields) <= dim or not dim:
            raise UserError(f"{path}:{index}: {max(len(fields) - 1, 0)} numbers, but {dim} are expected. Correct it.")
        try:
            rows.append(np.array(fields[-dim:], np.float32))
        except ValueError as error:
            raise UserError(f"{path}:{index}: not a word and its vector ({error}). Correct it.") from None
        words.append(_decoded(path, b" ".join(fields[:-dim])))
    if number is not None and limit is None and number != len(words):
        raise UserError(
            f"{path}: {len(words)} words, but its first line says {number}. The file is truncated; download it again."
        )
    return Vectors(tuple(words), np.stack(rows) if rows else np.zeros((0, dim or 1), np.float32))


def _decoded(path: str, word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise UserError(f"{path}: the word {word[:40]!r} is not UTF-8. Give a file in UTF-8.") from None


def to_bytes(path: str, found: Vectors) -> bytes:
    """Returns the contents of a file, in the format of its suffix. Text has enough digits for the same float32.

    Args:
      path: The file.
      found: The words and their vectors. Spaces in words become `_` in binary files, which cannot have them.
    """
    header = f"{len(found.words)} {found.vectors.shape[1]}\n".encode()
    if path.endswith(_BINARY):
        vectors = np.ascontiguousarray(found.vectors, "<f4")
        pairs = zip(found.words, vectors, strict=True)
        return header + b"".join(word.replace(" ", "_").encode() + b" " + row.tobytes() + b"\n" for word, row in pairs)
    lines = (f"{word} {format_vector(row)}\n" for word, row in zip(found.words, found.vectors, strict=True))
    return (b"" if path.endswith(GLOVE_SUFFIX) else header) + "".join(lines).encode()
