"""The merges of byte pair encoding (Sennrich et al. 2016), in TensorFlow and in Python.

In TensorFlow, all words of a batch are merged together: each step applies to every word its merge of lowest rank.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

_NO_MERGE = np.iinfo(np.int32).max


@dataclasses.dataclass(frozen=True, eq=False)
class Merges:
    """The merges of a vocabulary as arrays.

    Attributes:
      size: number of ids of the vocabulary.
      pairs: left * size + right of every merge, int64 `[merges + 1]`, ascending, with the largest int64 last.
      ranks: position of each merge in the order learned, int32 `[merges + 1]`.
      results: the id that each merge produces, int32 `[merges + 1]`.
    """

    size: int
    pairs: np.ndarray
    ranks: np.ndarray
    results: np.ndarray

    @classmethod
    def from_ids(cls, ids: Sequence[tuple[int, int, int]], size: int) -> Merges:
        """Returns merges given as ids, in the order learned.

        Args:
          ids: left, right and resulting id of each merge.
          size: number of ids of the vocabulary.
        """
        table = np.array(ids, np.int64).reshape(-1, 3)
        pairs = table[:, 0] * size + table[:, 1]
        by_pair = np.argsort(pairs, kind="stable")
        return cls(
            size=size,
            pairs=np.append(pairs[by_pair], np.iinfo(np.int64).max),
            ranks=np.append(by_pair, _NO_MERGE).astype(np.int32),
            results=np.append(table[by_pair, 2], 0).astype(np.int32),
        )

    @functools.cached_property
    def _by_pair(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Ranks and result of the merge of each pair of tokens."""
        rows = zip(self.pairs[:-1].tolist(), self.ranks.tolist(), self.results.tolist(), strict=False)
        # The first of several merges of a pair has the lowest rank.
        return {divmod(pair, self.size): (rank, result) for pair, rank, result in reversed(list(rows))}

    def apply_to_word(self, tokens: Sequence[int]) -> list[int]:
        """Merges the tokens of one word until no merge applies, without TensorFlow; see `apply`."""
        tokens, known = list(tokens), self._by_pair
        while found := [known.get(pair, (_NO_MERGE, 0)) for pair in itertools.pairwise(tokens)]:
            lowest = min(found)[0]
            if lowest == _NO_MERGE:
                break
            merged, position = [], 0
            while position < len(tokens):
                merges = position < len(found) and found[position][0] == lowest
                merged.append(found[position][1] if merges else tokens[position])
                position += 2 if merges else 1
            tokens = merged
        return tokens

    def apply(self, tokens: tf.Tensor, owners: tf.Tensor, words: tf.Tensor) -> tf.RaggedTensor:
        """Merges the tokens of words until no merge applies.

        Args:
          tokens: tokens of all words in sequence, int32 `[tokens]`.
          owners: the word of each token, ascending, int64 `[tokens]`.
          words: number of words, int64.

        Returns:
          The merged tokens of each word, `[words, (tokens)]`.
        """
        import tensorflow as tf

        any_length = tf.TensorShape([None])

        def merge(_, tokens, owners):
            return self._merge_lowest_rank(tokens, owners, words)

        _, tokens, owners = tf.while_loop(
            lambda more, *_: more,
            merge,
            (tf.size(tokens) > 0, tokens, owners),
            shape_invariants=(tf.TensorShape([]), any_length, any_length),
            parallel_iterations=1,
        )
        return tf.RaggedTensor.from_value_rowids(tokens, owners, nrows=words, validate=False)

    def _merge_lowest_rank(self, tokens: tf.Tensor, owners: tf.Tensor, words: tf.Tensor):
        """Applies to each word the merge of lowest rank, wherever it occurs.

        Args:
          tokens: tokens of all words in sequence, int32 `[tokens]`.
          owners: the word of each token, ascending, int64 `[tokens]`.
          words: number of words.

        Returns:
          Whether any merge was applied, and both arrays after it.
        """
        import tensorflow as tf

        pairs = tf.cast(tokens[:-1], tf.int64) * self.size + tf.cast(tokens[1:], tf.int64)
        pairs = tf.where(owners[:-1] == owners[1:], pairs, -1)
        found = tf.searchsorted(self.pairs, pairs)
        ranks = tf.where(tf.gather(self.pairs, found) == pairs, tf.gather(self.ranks, found), _NO_MERGE)
        lowest_rank = tf.math.unsorted_segment_min(ranks, owners[:-1], words)
        merges = (ranks < _NO_MERGE) & (ranks == tf.gather(lowest_rank, owners[:-1]))
        merges = every_other(merges)
        tokens = tf.where(tf.pad(merges, [[0, 1]]), tf.pad(tf.gather(self.results, found), [[0, 1]]), tokens)
        kept = ~tf.pad(merges, [[1, 0]])
        return tf.reduce_any(merges), tf.boolean_mask(tokens, kept), tf.boolean_mask(owners, kept)


def every_other(flags: tf.Tensor) -> tf.Tensor:
    """Keeps the first, third, … flag of each run of True flags `[length]`: in "aaa" the first two letters merge."""
    import tensorflow as tf

    begins = flags & ~tf.pad(flags, [[1, 0]])[:-1]
    positions = tf.range(tf.size(flags))
    run = tf.cumsum(tf.cast(begins, tf.int32))
    begin_of_run = tf.concat([[0], tf.boolean_mask(positions, begins)], axis=0)
    return flags & ((positions - tf.gather(begin_of_run, run)) % 2 == 0)
