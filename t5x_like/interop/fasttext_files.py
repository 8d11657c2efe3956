"""fastText's binary files of models, which also have the vectors of n-grams.

Layout, little-endian: magic number and version; the arguments; the dictionary: its sizes, then each word with 0 at its
end, its count and its kind; whether the input is quantized, and the input matrix: the rows of the words, then those of
the buckets; the same for the output. Source: `fasttext.cc`, `args.cc`, `dictionary.cc` and `densematrix.cc`.
"""

import struct
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from t5x_like.data.subwords import Subwords
from t5x_like.errors import UserError
from t5x_like.vocabularies.word_counts import WordCounts

MAGIC, VERSION = 793712314, 12
# In version 11, classifiers have no n-grams of characters, whatever their arguments say.
_EARLIER_VERSION = 11
_ARGUMENTS = "<12id"
CBOW, SKIP_GRAM, CLASSIFIER = 1, 2, 3
TREE, NEGATIVE_SAMPLING, SOFTMAX = 1, 2, 3
_WORD, _LABEL = 0, 1
_PREFIX = "__label__"
_LR_UPDATE_RATE = 100


class FastTextModel(NamedTuple):
    """A model.

    Attributes:
      words: The words and their counts.
      subwords: How words consist of n-grams.
      inputs: Vectors of words, then of buckets.
      outputs: Vectors of words as targets; of a classifier, vectors of labels. With `TREE`, vectors of the nodes of the
        tree of words or of labels.
      window: Largest number of context words on each side.
      negatives: Number of negative samples.
      subsampling: Threshold of subsampling.
      kind: `CBOW`, `SKIP_GRAM` or `CLASSIFIER`.
      loss: `NEGATIVE_SAMPLING`, `SOFTMAX` or `TREE`; a classifier has no negative samples.
      word_ngrams: Largest number of words of an n-gram of a classifier.
      labels: The labels of a classifier and their counts, in descending order of the counts; otherwise None.
    """

    words: WordCounts
    subwords: Subwords
    inputs: Float32[np.ndarray, "rows embed"]
    outputs: Float32[np.ndarray, "words embed"]
    window: int = 5
    negatives: int = 5
    subsampling: float = 1e-4
    kind: int = SKIP_GRAM
    loss: int = NEGATIVE_SAMPLING
    word_ngrams: int = 1
    labels: WordCounts | None = None


def is_fasttext(contents: bytes) -> bool:
    """Returns whether the contents of a file are a model of fastText."""
    return contents[:4] == struct.pack("<i", MAGIC)


class _Reader:
    """Reads values one after another."""

    def __init__(self, path: str, contents: bytes):
        self._path, self._contents, self._at = path, contents, 0

    def take(self, size: int) -> bytes:
        if size < 0:
            raise UserError(f"{self._path}: a size below 0 before byte {self._at:,}. Download it again.")
        found = self._contents[self._at : self._at + size]
        if len(found) < size:
            raise UserError(
                f"{self._path}: ends at byte {len(self._contents):,}, {size - len(found):,} bytes too early. The file "
                "is truncated; download it again."
            )
        self._at += size
        return found

    def values(self, form: str) -> tuple:
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def word(self) -> str:
        end = self._contents.find(b"\0", self._at)
        text = self.take(max(end - self._at, 0) if end >= 0 else len(self._contents) + 1)
        self.take(1)
        return text.decode(errors="surrogateescape")

    def matrix(self) -> Float32[np.ndarray, "rows columns"]:
        (quantized,) = self.values("<?")
        if quantized:
            raise UserError(f"{self._path}: a quantized model. Give the model before its quantization.")
        rows, columns = self.values("<qq")
        if rows < 0 or columns < 1:
            raise UserError(f"{self._path}: a matrix of {rows} × {columns}. Download the file again.")
        return np.frombuffer(self.take(4 * rows * columns), "<f4").reshape(rows, columns)


def read(path: str, contents: bytes) -> FastTextModel:
    """Reads a model.

    Args:
      path: The file, for messages.
      contents: Its contents.

    Raises:
      UserError: The file is truncated, of another version or quantized, or a classifier has another loss.
    """
    reader = _Reader(path, contents)
    _, version = reader.values("<ii")
    if version not in (_EARLIER_VERSION, VERSION):
        raise UserError(
            f"{path}: version {version} of fastText's format. Give a file of version {_EARLIER_VERSION} or {VERSION}."
        )
    found = reader.values(_ARGUMENTS)
    window, negatives, word_ngrams, loss, kind, buckets, shortest, longest, subsampling = (
        found[at] for at in (1, 4, 5, 6, 7, 8, 9, 10, 12)
    )
    if kind not in (CBOW, SKIP_GRAM, CLASSIFIER) or loss not in (TREE, NEGATIVE_SAMPLING, SOFTMAX):
        raise UserError(f"{path}: a model of kind {kind} with loss {loss}. Give a model of fastText.")
    if version == _EARLIER_VERSION and kind == CLASSIFIER:
        longest = 0
    if kind == CLASSIFIER and loss not in (TREE, SOFTMAX):
        raise UserError(f"{path}: a classifier with loss {loss}. Give one with softmax or hierarchical softmax.")
    size, number, _, _, pruned = reader.values("<iiiqq")
    if not 0 <= number <= size or buckets < 0:
        raise UserError(f"{path}: {number} words of {size}, and {buckets} buckets. Download the file again.")
    if pruned >= 0 or (kind != CLASSIFIER and size != number):
        raise UserError(f"{path}: its n-grams are pruned, or vectors have labels. Give the model before quantization.")
    names, counts = [], []
    for _ in range(size):
        names.append(reader.word())
        counts.append(reader.values("<qb")[0])
    inputs, outputs = reader.matrix(), reader.matrix()
    shortest = max(shortest, 1) if longest else 0  # without n-grams of characters, `minn` is not read
    subwords = Subwords(buckets if longest or (kind == CLASSIFIER and word_ngrams > 1) else 0, shortest, longest)
    if version == _EARLIER_VERSION and not subwords.buckets:
        inputs = inputs[:number]  # the file has buckets that the model does not read
    targets = size - number if kind == CLASSIFIER else size
    if len(inputs) != number + subwords.buckets or len(outputs) != targets:
        raise UserError(f"{path}: {len(inputs)} rows do not suit {number} words and {subwords.buckets} buckets.")
    words = WordCounts(tuple(names[:number]), np.array(counts[:number], np.int64))
    labels = None
    if kind == CLASSIFIER:
        plain = tuple(name.removeprefix(_PREFIX) for name in names[number:])
        labels = WordCounts(plain, np.array(counts[number:], np.int64))
    return FastTextModel(
        words, subwords, inputs, outputs, window, negatives, subsampling, kind, loss, word_ngrams, labels
    )


def to_bytes(model: FastTextModel) -> bytes:
    """Returns the contents of a file."""
    names, counts = model.words
    labels = model.labels or WordCounts((), np.zeros(0, np.int64))
    buckets, shortest, longest = model.subwords
    dim, smallest = model.inputs.shape[1], int(min(counts, default=1))
    parts = [
        struct.pack("<ii", MAGIC, VERSION),
        struct.pack(
            _ARGUMENTS,
            *(dim, model.window, 5, smallest, model.negatives, model.word_ngrams, model.loss, model.kind, buckets),
            *(shortest, longest, _LR_UPDATE_RATE, model.subsampling),
        ),
        struct.pack("<iiiqq", len(names) + len(labels.words), len(names), len(labels.words), int(counts.sum()), -1),
    ]
    entries = [(name, count, _WORD) for name, count in zip(names, counts.tolist(), strict=True)]
    entries += [(_PREFIX + name, count, _LABEL) for name, count in zip(*map(list, labels), strict=True)]
    for name, count, kind in entries:
        parts.append(name.encode(errors="surrogateescape") + b"\0" + struct.pack("<qb", count, kind))
    for matrix in (model.inputs, model.outputs):
        parts.append(struct.pack("<?qq", False, *matrix.shape) + np.ascontiguousarray(matrix, "<f4").tobytes())
    return b"".join(parts)
