"""The words of a sampled softmax: how an objective draws them."""

import dataclasses
import functools
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from t5x_like.data import word_counts
from t5x_like.errors import UserError
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
          UserError: the file is invalid, its counts are not known, or it has more words than the model.
        """
        return sampled_softmax.draw(key, self.number, jnp.asarray(_log_frequencies(self.vocabulary_path, vocab_size)))


@functools.lru_cache(maxsize=2)
def _log_frequencies(path: str | None, vocab_size: int) -> Float32[np.ndarray, " vocab"]:
    counts = word_counts.read_known(path).id_counts
    if len(counts) > vocab_size:
        raise UserError(
            f"VOCABULARY_PATH={path}: {len(counts)} ids, but vocab_size={vocab_size}. Set vocab_size={len(counts)} or "
            "more for the model."
        )
    counts = np.maximum(np.pad(counts, (0, vocab_size - len(counts))), 1)
    return np.log(counts / counts.sum()).astype(np.float32)
