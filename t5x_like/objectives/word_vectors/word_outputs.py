"""How an objective of word vectors predicts a word: by negative samples, or along its path in a tree.

Both make it a few independent decisions: each has a vector in a table, and the probability of 1 is the sigmoid of its
inner product with the input. word2vec looks the sigmoid up in a table of 1,000 values between -6 and 6; here it is
exact.
"""

import dataclasses
import functools
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.recorded import recorded
from t5x_like.vocabularies import word_counts
from t5x_like.vocabularies.word_counts import FIRST_WORD_ID, WordCounts


class Decisions(NamedTuple):
    """The decisions by which words are predicted.

    Attributes:
      ids: Their rows in the table of the output.
      labels: Their results, 0 or 1.
      weights: 0 for decisions that do not count.
    """

    ids: Int[Array, "examples decisions"]
    labels: Float[Array, "examples decisions"]
    weights: Float[Array, "examples decisions"]


class WordOutput(Protocol):
    """Turns the prediction of a word into decisions.

    Attributes:
      table: Name of the head with the vectors of the decisions.
    """

    table: str

    def decisions(self, counts: WordCounts, targets: Int[Array, " examples"], key: jax.Array) -> Decisions:
        """Returns the decisions of examples.

        Args:
          counts: The words of the vocabulary.
          targets: The words to predict.
          key: Random key.
        """


@recorded
@dataclasses.dataclass(frozen=True)
class NegativeSampling:
    """Tells a word from others drawn by count^power (Mikolov et al. 2013, arXiv:1310.4546, section 2.2).

    A drawn word that is the word itself does not count, as in word2vec.

    Attributes:
      negatives: Number of drawn words.
      power: Exponent of the counts.

    Raises:
      UserError: The number is not positive.
    """

    negatives: int = 5
    power: float = 0.75

    table = "output"

    def __post_init__(self):
        if self.negatives < 1:
            raise UserError(f"NEGATIVES={self.negatives} is not positive. Give a positive integer.")

    def decisions(self, counts: WordCounts, targets: Int[Array, " examples"], key: jax.Array) -> Decisions:
        """Returns a word and its negative samples; see `WordOutput`."""
        drawn = _draw(_alias(counts.counts.tobytes(), self.power), key, (*targets.shape, self.negatives))
        ids = jnp.concatenate([targets[:, None], drawn], axis=1)
        is_target = jnp.arange(ids.shape[1]) == 0
        weights = (is_target | (ids != targets[:, None])).astype(jnp.float32)
        return Decisions(ids, jnp.broadcast_to(is_target.astype(jnp.float32), ids.shape), weights)


@recorded
@dataclasses.dataclass(frozen=True)
class HierarchicalSoftmax:
    """Decides at each node of a Huffman tree for a branch (Mikolov et al. 2013, arXiv:1310.4546, section 2.1).

    Words have the codes of word2vec; the result of a decision is 1 - bit.
    """

    table = "nodes"

    def decisions(self, counts: WordCounts, targets: Int[Array, " examples"], key: jax.Array) -> Decisions:
        """Returns the nodes from the root to a word; see `WordOutput`."""
        codes = _codes(counts.counts.tobytes())
        words = jnp.maximum(targets - FIRST_WORD_ID, 0)
        nodes, bits, lengths = (jnp.asarray(each)[words] for each in codes)
        weights = (jnp.arange(nodes.shape[1]) < lengths[:, None]).astype(jnp.float32)
        return Decisions(nodes, 1.0 - bits, weights)


@functools.lru_cache(maxsize=4)
def _alias(counts: bytes, power: float) -> word_counts.AliasTable:
    return word_counts.alias_table(np.frombuffer(counts, np.int64).astype(np.float64) ** power)


@functools.lru_cache(maxsize=4)
def _codes(counts: bytes) -> word_counts.Codes:
    return word_counts.huffman(np.frombuffer(counts, np.int64))


def _draw(table: word_counts.AliasTable, key: jax.Array, shape: tuple[int, ...]) -> Int[Array, "..."]:
    """Draws ids of words."""
    column_key, keep_key = jax.random.split(key)
    # The probabilities of columns differ by at most 2⁻³². `randint` draws twice as many bits for a smaller difference.
    column = (jax.random.bits(column_key, shape, jnp.uint32) % len(table.keep)).astype(jnp.int32)
    keeps = jax.random.uniform(keep_key, shape) < jnp.asarray(table.keep)[column]
    return jnp.where(keeps, column, jnp.asarray(table.other)[column]) + FIRST_WORD_ID
