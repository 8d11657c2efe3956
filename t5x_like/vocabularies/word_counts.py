"""Files of words and their counts, and what objectives of word vectors compute from counts.

A file has a word and its count per line, separated by a space, most frequent words first, as word2vec's `-save-vocab`
and GloVe's `vocab_count` write it. The ids of words begin after padding, the end of a sentence and unknown words.
"""

import functools
import heapq
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Float64, Int32, Int64

from t5x_like import limits, paths
from t5x_like.errors import UserError
from t5x_like.vocabularies import tokenizer_files
from t5x_like.vocabularies.tokenizer_files import VocabularyNotSet

EOS = "</s>"
"""The word that ends a sentence, as in word2vec's files."""
SPECIAL = ("<pad>", EOS, "<unk>")
PAD_ID, EOS_ID, UNK_ID = range(len(SPECIAL))
FIRST_WORD_ID = len(SPECIAL)


class WordCounts(NamedTuple):
    """Words and their counts, in the order of the file.

    Attributes:
      words: The words.
      counts: `[words]`; 0 if they are not known.
    """

    words: tuple[str, ...]
    counts: Int64[np.ndarray, " words"]

    @property
    def id_counts(self) -> Int64[np.ndarray, " ids"]:
        """The counts of all ids; 0 for special ones."""
        return np.concatenate([np.zeros(FIRST_WORD_ID, np.int64), self.counts])


def to_bytes(words: WordCounts) -> bytes:
    """Returns the contents of a file."""
    return "".join(f"{word} {count}\n" for word, count in zip(words.words, words.counts.tolist(), strict=True)).encode()


def find(path: str) -> str | None:
    """Returns the file of words and counts at a path, or None. The lines of other vocabularies have no counts.

    Args:
      path: The file, or a directory with only this vocabulary.
    """
    found = tokenizer_files.find(path)
    if found is None or not found.endswith(tokenizer_files.WORDPIECE) or not paths.is_file(found):
        return None
    word, _, count = paths.read_text(found).partition("\n")[0].rpartition(" ")
    return found if word and limits.is_count(count.strip()) else None


@functools.lru_cache(maxsize=4)
def read(path: str | None) -> WordCounts:
    """Reads a file. Lines of special words are skipped, such as that of `</s>`, which word2vec writes first.

    Args:
      path: The file, or a directory with only this vocabulary.

    Raises:
      UserError: The file is not found, a line is invalid, a word occurs twice, or there is no word.
    """
    if not path:
        raise VocabularyNotSet(
            "VOCABULARY_PATH is not set: word vectors need words and their counts. Give the output of "
            "`t5x_like vocabulary --kind=words`."
        )
    found = tokenizer_files.find(path)
    if found is None or not found.endswith(tokenizer_files.WORDPIECE) or not paths.is_file(found):
        raise UserError(f"VOCABULARY_PATH={path}: a file of words and counts is not found. Give its path.")
    counts: dict[str, int] = {}
    text = paths.read_text(found).removeprefix("\N{BYTE ORDER MARK}").removesuffix("\n")
    for number, line in enumerate(text.split("\n"), 1):
        word, _, count = line.rstrip("\r").rpartition(" ")
        if not word or not limits.is_count(count):
            raise UserError(f"{found}:{number}: {line!r:.60} is not a word and its count. Give a file of such lines.")
        if word in counts:
            raise UserError(f"{found}:{number}: {word!r} occurs twice. Remove one of the lines.")
        counts[word] = int(count)
    for special in SPECIAL:
        counts.pop(special, None)
    if not counts:
        raise UserError(f"{found}: no words. Give a larger text, or a smaller MIN_COUNT.")
    return WordCounts(tuple(counts), np.array(list(counts.values()), np.int64))


def read_known(path: str | None) -> WordCounts:
    """Reads a file whose counts are known; see `read`.

    Raises:
      UserError: The counts are 0, as in a file that belongs to converted vectors.
    """
    found = read(path)
    if not found.counts.all():
        raise UserError(
            f"VOCABULARY_PATH={path}: the counts of its words are not known. Count them with "
            "`t5x_like vocabulary --kind=words`."
        )
    return found


def known_id_counts(path: str | None, vocab_size: int) -> Int64[np.ndarray, " vocab"]:
    """Returns the count of each id of a model; 0 for special ids and for ids after the words.

    Args:
      path: See `read`.
      vocab_size: Number of ids of the model.

    Raises:
      UserError: The file is invalid, its counts are not known, or it has more ids than the model.
    """
    counts = read_known(path).id_counts
    if len(counts) > vocab_size:
        raise UserError(
            f"VOCABULARY_PATH={path}: {len(counts)} ids, but vocab_size={vocab_size}. Set vocab_size={len(counts)} or "
            "more for the model."
        )
    return np.pad(counts, (0, vocab_size - len(counts)))


class AliasTable(NamedTuple):
    """A distribution from which a draw takes two numbers (Walker 1977, Vose 1991).

    A draw takes a uniform column; with probability `keep[column]` the result is the column, else `other[column]`.

    Attributes:
      keep: `[outcomes]`.
      other: `[outcomes]`.
    """

    keep: Float32[np.ndarray, " outcomes"]
    other: Int32[np.ndarray, " outcomes"]


def alias_table(probabilities: Float64[np.ndarray, " outcomes"]) -> AliasTable:
    """Returns the table of a distribution.

    Args:
      probabilities: Probability of each outcome, up to a common factor.
    """
    scaled = probabilities * (len(probabilities) / probabilities.sum())
    keep, other = np.ones(len(scaled)), np.arange(len(scaled), dtype=np.int32)
    small, large = (list(np.flatnonzero(each)) for each in (scaled < 1, scaled >= 1))
    while small and large:
        low, high = small.pop(), large[-1]
        keep[low], other[low] = scaled[low], high
        scaled[high] -= 1 - scaled[low]
        if scaled[high] < 1:
            small.append(large.pop())
    return AliasTable(keep.astype(np.float32), other)


def keep_probabilities(counts: Int64[np.ndarray, " words"], threshold: float) -> Float32[np.ndarray, " words"]:
    """Returns the probability with which subsampling keeps a word: √(t/f) + t/f, at most 1, where f is its frequency.

    word2vec and fastText compute this, which differs from √(t/f) of the paper (Mikolov et al. 2013, section 2.3).

    Args:
      counts: Counts of the words.
      threshold: t; 0 keeps all words.
    """
    if not threshold:
        return np.ones(len(counts), np.float32)
    ratio = threshold * counts.sum() / np.maximum(counts, 1)
    return np.minimum(np.sqrt(ratio) + ratio, 1).astype(np.float32)


class Codes(NamedTuple):
    """The paths of words in a Huffman tree with n words and n - 1 inner nodes.

    Attributes:
      nodes: The inner nodes from the root to each word, `[words, longest]`, padded with 0.
      bits: The branch at each of them, 0 or 1, `[words, longest]`.
      lengths: Number of nodes of each word, `[words]`.
    """

    nodes: Int32[np.ndarray, "words longest"]
    bits: Int32[np.ndarray, "words longest"]
    lengths: Int32[np.ndarray, " words"]


def huffman(counts: Int64[np.ndarray, " words"]) -> Codes:
    """Returns the Huffman codes of words (Mikolov et al. 2013, section 2.1).

    Nodes are numbered in the order in which they are merged. Of equal counts, inner nodes come before words, earlier
    nodes and later words first, as in word2vec.

    Args:
      counts: Counts of at least two words, in descending order.

    Raises:
      UserError: There are fewer words.
    """
    number = len(counts)
    if number < 2:
        raise UserError(f"hierarchical softmax: {number} word has no tree. Give a larger text, or a smaller MIN_COUNT.")
    # (count, word or not, order, id): words are merged from the last one on.
    heap = [(int(count), 1, number - index, index) for index, count in enumerate(counts)]
    heapq.heapify(heap)
    parents, branches = np.zeros(2 * number - 1, np.int64), np.zeros(2 * number - 1, np.int64)
    for node in range(number - 1):
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        parents[[first[3], second[3]]] = number + node
        branches[second[3]] = 1
        heapq.heappush(heap, (first[0] + second[0], 0, node, number + node))
    paths_of, root = [], 2 * number - 2
    for word in range(number):
        at, path = word, []
        while at != root:
            path.append((parents[at] - number, branches[at]))
            at = parents[at]
        paths_of.append(path[::-1])
    lengths = np.array([len(path) for path in paths_of], np.int32)
    nodes, bits = (np.zeros((number, lengths.max()), np.int32) for _ in range(2))
    for word, path in enumerate(paths_of):
        nodes[word, : len(path)], bits[word, : len(path)] = zip(*path, strict=True)
    return Codes(nodes, bits, lengths)
