"""fastText: skip-gram whose words are the mean of vectors of their character n-grams (Bojanowski et al. 2017)."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Int32

from t5x_like.data.subwords import Subwords
from t5x_like.errors import UserError
from t5x_like.objectives.word_vectors.interface import TABLE
from t5x_like.objectives.word_vectors.word2vec import WordPrediction
from t5x_like.objectives.word_vectors.word_contexts import Contexts, offsets, pairs
from t5x_like.objectives.word_vectors.word_outputs import NegativeSampling, WordOutput
from t5x_like.recorded import recorded
from t5x_like.vocabularies.word_counts import FIRST_WORD_ID

# Words whose vectors are computed at once, from about 20 rows each.
_WORDS_AT_ONCE = 4096


@recorded
class SubwordSkipGram(WordPrediction):
    """Predicts the words of the context of each word from the mean of its own vector and those of its n-grams.

    The rows of the n-grams follow the words in the table of the model, `WordVectorsConfig.buckets` of them. As in the
    published program, the gradient of the mean is added to each row, undivided.

    Args:
      vocabulary_path: Words and their counts; see `vocabularies.word_counts`.
      shortest: Smallest number of characters of an n-gram.
      longest: Largest number of characters of an n-gram.
      buckets: Number of rows that n-grams share, as in the configuration of the model.
      output: How a word is predicted.
      window: Largest number of context words on each side.
      subsampling: Threshold t of `word_counts.keep_probabilities`; 0 keeps all words.
      examples_per_update: Number of examples between updates.

    Raises:
      UserError: A number is not positive, or the lengths are not in order.
    """

    def __init__(
        self,
        vocabulary_path: str | None = None,
        *,
        shortest: int = 3,
        longest: int = 6,
        buckets: int = 2_000_000,
        output: WordOutput = NegativeSampling(power=0.5),  # noqa: B008 (frozen)
        window: int = 5,
        subsampling: float = 1e-4,
        examples_per_update: int = 256,
    ):
        super().__init__(
            vocabulary_path,
            output=output,
            window=window,
            subsampling=subsampling,
            examples_per_update=examples_per_update,
        )
        if not 1 <= shortest <= longest or buckets < 1:
            raise UserError(
                f"MIN_NGRAM={shortest}, MAX_NGRAM={longest}, BUCKETS={buckets}: not positive and in order. Give such "
                "as 3, 6 and 2000000."
            )
        self.subwords = Subwords(buckets, shortest, longest)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Returns the table of the output; see `Objective.init`."""
        config = model.config
        if config.buckets != self.subwords.buckets:
            raise UserError(
                f"BUCKETS={self.subwords.buckets}: the model has {config.buckets}. Set WordVectorsConfig.buckets to it."
            )
        return super().init(key, model)

    def examples(self, found: Contexts) -> Bool[Array, " candidates"]:
        """Returns which offsets of which words are in a window."""
        return found.in_window.reshape(-1)

    def inputs(
        self, found: Contexts, candidates: Int[Array, " examples"], number: int
    ) -> tuple[Int[Array, "examples inputs"], Bool[Array, "examples inputs"], Int[Array, " examples"]]:
        """Returns the rows of a word as inputs, and the word at the offset as target."""
        word, other = pairs(candidates, self.window)
        rows = jnp.asarray(self._rows(number))[found.words[word]]
        return jnp.maximum(rows, 0), rows >= 0, found.words[other]

    @functools.lru_cache(maxsize=2)  # noqa: B019 (an objective lives as long as its run)
    def _rows(self, number: int) -> Int32[np.ndarray, "ids longest"]:
        return self.subwords.rows(self.counts.words, FIRST_WORD_ID, number - self.subwords.buckets)

    def vectors(self, tables: Mapping[str, Array], words: Sequence[str]) -> Float[Array, "ids embed"]:
        """Returns the vectors of the ids of the vocabulary: the means of their rows."""
        return mean_vectors(self.subwords, jnp.asarray(tables[TABLE]), words)

    def compose(self, word: str, table: Float[Array, "rows embed"]) -> Float[np.ndarray, " embed"] | None:
        """Returns the vector of a word that is not in the vocabulary; None if it has no n-gram.

        Args:
          word: The word.
          table: The table of the model.
        """
        first = table.shape[0] - self.subwords.buckets
        rows = [first + bucket for bucket in self.subwords.buckets_of(word)]
        return np.asarray(table[jnp.array(rows)]).mean(axis=0) if rows else None


@recorded
class SubwordBagOfWords(SubwordSkipGram):
    """Predicts each word from the mean of the vectors of its context: of all words and of all their n-grams.

    As in the published program, the gradient of the mean is added to each row, undivided. See `SubwordSkipGram` for the
    arguments.
    """

    def examples(self, found: Contexts) -> Bool[Array, " candidates"]:
        """Returns which words have a context."""
        return jnp.any(found.in_window, axis=1)

    def inputs(
        self, found: Contexts, candidates: Int[Array, " examples"], number: int
    ) -> tuple[Int[Array, "examples inputs"], Bool[Array, "examples inputs"], Int[Array, " examples"]]:
        """Returns the rows of the words of the window as inputs, and the word itself as target."""
        others = jnp.clip(candidates[:, None] + offsets(self.window), 0, found.words.size - 1)
        rows = jnp.asarray(self._rows(number))[found.words[others]]
        rows = jnp.where(found.in_window[candidates][..., None], rows, -1).reshape(candidates.shape[0], -1)
        return jnp.maximum(rows, 0), rows >= 0, found.words[candidates]


def mean_vectors(
    subwords: Subwords, table: Float[Array, "rows embed"], words: Sequence[str]
) -> Float[Array, "ids embed"]:
    """Returns the vectors of the ids of a vocabulary: the means of the rows of each word and of its n-grams.

    Args:
      subwords: How words consist of n-grams, whose rows follow those of the words.
      table: The table of the model.
      words: The words, without special ones.
    """
    table, first = np.asarray(table), table.shape[0] - subwords.buckets
    means = [table[:FIRST_WORD_ID]]
    for start in range(0, len(words), _WORDS_AT_ONCE):
        # A list per word: a published file has words of hundreds of characters, for which a padded array is too large.
        rows = [
            [index, *(first + bucket for bucket in subwords.buckets_of(word))]
            for index, word in enumerate(words[start : start + _WORDS_AT_ONCE], FIRST_WORD_ID + start)
        ]
        numbers = np.array([len(of_word) for of_word in rows])
        sums = np.add.reduceat(table[np.concatenate(rows)], np.cumsum(numbers) - numbers, dtype=np.float64)
        means.append((sums / numbers[:, None]).astype(table.dtype))
    return jnp.asarray(np.concatenate(means))
