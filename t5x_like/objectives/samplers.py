"""The distributions from which an objective draws the tokens of a sampled softmax."""

import dataclasses
import functools
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from t5x_like.data import word_counts
from t5x_like.kernels import sampled_softmax
from t5x_like.kernels.sampled_softmax import Samples


class Sampler(Protocol):
    """A distribution of samples.

    Attributes:
      number: number of samples.
    """

    number: int

    def draw(self, key: jax.Array, vocab_size: int) -> Samples:
        """Draws different ids.

        Args:
          key: random key.
          vocab_size: number of ids to draw from.
        """


@dataclasses.dataclass(frozen=True)
class LogUniform:
    """Zipf's law, for ids in the order of frequency; see `sampled_softmax.log_uniform`."""

    # Number of samples.
    number: int = 8192

    def draw(self, key: jax.Array, vocab_size: int) -> Samples:
        """Draws different ids; see `Sampler.draw`."""
        return sampled_softmax.log_uniform(key, self.number, vocab_size)


@dataclasses.dataclass(frozen=True)
class Unigram:
    """The frequencies of words, as in the released code of Dai and Le (2015); ids without a count have the count 1."""

    # Number of samples.
    number: int = 1024
    # Words and their counts, the vocabulary of the task; see `data.word_counts`.
    vocabulary_path: str | None = None

    def draw(self, key: jax.Array, vocab_size: int) -> Samples:
        """Draws different ids; see `Sampler.draw`.

        Raises:
          UserError: see `word_counts.known_id_counts`.
        """
        return sampled_softmax.draw(key, self.number, jnp.asarray(_log_frequencies(self.vocabulary_path, vocab_size)))


@functools.lru_cache(maxsize=2)
def _log_frequencies(path: str | None, vocab_size: int) -> Float32[np.ndarray, " vocab"]:
    counts = np.maximum(word_counts.known_id_counts(path, vocab_size), 1)
    return np.log(counts / counts.sum()).astype(np.float32)
