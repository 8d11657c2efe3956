"""Sampled softmax of language models (Jean et al. 2015), and the distributions from which its tokens are drawn."""

import dataclasses
import functools
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float32

from t5x_like.errors import UserError
from t5x_like.kernels import sampled_softmax
from t5x_like.kernels.sampled_softmax import Samples
from t5x_like.layers.embeddings import Unembedding
from t5x_like.objectives.base import Params, Pass
from t5x_like.objectives.keys import Keys
from t5x_like.vocabularies import word_counts


class Sampler(Protocol):
    """A distribution of samples.

    Attributes:
      number: Number of samples.
    """

    number: int

    def draw(self, key: jax.Array, vocab_size: int) -> Samples:
        """Draws different ids.

        Args:
          key: Random key.
          vocab_size: Number of ids to draw from.
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
    # Words and their counts, the vocabulary of the task; see `vocabularies.word_counts`.
    vocabulary_path: str | None = None

    def draw(self, key: jax.Array, vocab_size: int) -> Samples:
        """Draws different ids; see `Sampler.draw`.

        Raises:
          UserError: See `word_counts.known_id_counts`.
        """
        return sampled_softmax.draw(key, self.number, jnp.asarray(_log_frequencies(self.vocabulary_path, vocab_size)))


@functools.lru_cache(maxsize=2)
def _log_frequencies(path: str | None, vocab_size: int) -> Float32[np.ndarray, " vocab"]:
    counts = np.maximum(word_counts.known_id_counts(path, vocab_size), 1)
    return np.log(counts / counts.sum()).astype(np.float32)


def check_model(sampler: Sampler | None, objective: str, model: nnx.Module) -> None:
    """Checks that a model has a sampled softmax.

    Args:
      sampler: The sampler of an objective; None: a softmax over all tokens, which any model has.
      objective: Name of the objective, for errors.
      model: The model.

    Raises:
      UserError: The model has no logits for the sampler, or has too few tokens.
    """
    if sampler is None:
        return
    logits = getattr(model, "logits", None)
    if not (isinstance(logits, Unembedding) and logits.has_bias):
        raise UserError(
            f"sampler={sampler} of {objective}: {type(model.config).__name__} has no logits with a kernel and a bias "
            "of its own. Give None, or a model of models/lstm/."
        )
    if sampler.number >= model.config.vocab_size:
        raise UserError(
            f"sampler={sampler} of {objective}: not fewer samples than the vocab_size={model.config.vocab_size} of the "
            "model. Give fewer, or None for a softmax over all tokens."
        )


def with_sampled_softmax(found: Pass, term: str, sampler: Sampler | None, params: Params, keys: Keys) -> Pass:
    """Returns a pass of training with a sampled softmax, whose only metric is `loss`; at evaluation, the same pass.

    Args:
      found: The distributions of an objective, with a softmax over all tokens.
      term: Name of the term, and of its distributions.
      sampler: Draws the tokens, which all positions share; None: the same pass is returned.
      params: The parameters.
      keys: Random keys. Only training has dropout keys.
    """
    if sampler is None or keys.dropout is None:
        return found
    logits, predicted = params["model"].logits, dataclasses.replace(found.predictions[term], losses=())
    samples = sampler.draw(keys.step, logits.kernel.shape[1])
    losses = sampled_softmax.cross_entropy(
        predicted.hidden, logits.kernel[...].T, logits.bias[...], predicted.targets, samples
    )
    weights = predicted.target_weights
    pair = jnp.sum(losses * weights), jnp.sum(weights)
    return dataclasses.replace(found, predictions={term: predicted}, sums={term: pair[0]}, metrics={"loss": pair})
