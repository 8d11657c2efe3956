"""Normalization of token embeddings over the vocabulary, as in the code that Dai and Le (2015) released."""

import dataclasses
import functools
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from t5x_like.layers.embeddings import Embedder
from t5x_like.vocabularies import word_counts

Table = Float[Array, "ids embed"]
# Added to the variance, as in the released code (adversarial_text, `layers.Embedding`).
_EPSILON = 1e-6


class EmbeddingNorm(Protocol):
    """How a table of embeddings is normalized."""

    def normalize(self, table: Table) -> Table:
        """Returns the normalized table. Gradients pass through the statistics."""


@dataclasses.dataclass(frozen=True)
class FrequencyNorm:
    """Mean 0 and variance 1 of each feature over the vocabulary, weighted by frequency.

    This is equation 1 of Miyato et al. (2017, arXiv:1605.07725), without adversarial perturbations. With the
    frequencies f of the words and the table v, a word k has the vector (vₖ - Σ fⱼ vⱼ) / √(1e-6 + Var), where Var is
    Σ fⱼ (vⱼ - Σ fᵢ vᵢ)². Special ids, whose frequencies are not known, have the weight 0.
    """

    # Words and their counts, the vocabulary of the task; see `vocabularies.word_counts`.
    vocabulary_path: str | None = None

    def normalize(self, table: Table) -> Table:
        """Normalizes the table; see `EmbeddingNorm.normalize`.

        Raises:
          UserError: See `word_counts.known_id_counts`.
        """
        weights = jnp.asarray(frequencies(self.vocabulary_path, len(table)))
        mean = jnp.einsum("v,ve->e", weights, table)
        variance = jnp.einsum("v,ve->e", weights, jnp.square(table - mean))
        return (table - mean) * jax.lax.rsqrt(variance + _EPSILON)


@functools.lru_cache(maxsize=2)
def frequencies(path: str | None, rows: int) -> Float32[np.ndarray, " rows"]:
    """Returns the frequency of each id in a vocabulary of words, 0 for special ids and for ids after the words.

    Args:
      path: See `word_counts.read`.
      rows: Number of ids of the model.

    Raises:
      UserError: See `word_counts.known_id_counts`.
    """
    counts = word_counts.known_id_counts(path, rows)
    return (counts / counts.sum()).astype(np.float32)


class NormalizedEmbedder(Embedder):
    """An `Embedder` that looks ids up in a normalized table.

    Args:
      norm: How the table is normalized.
      *args: Arguments of `Embedder`.
      **options: Arguments of `Embedder`.
    """

    def __init__(self, norm: EmbeddingNorm, *args, **options):
        super().__init__(*args, **options)
        self.norm = norm

    def lookup(self, ids: Int[Array, "batch length"]) -> Float[Array, "batch length embed"]:
        """Returns the normalized vectors of the ids; see `Embedder.lookup`."""
        return jnp.take(self.table, ids, axis=0, mode="fill", fill_value=jnp.nan)

    @property
    def table(self) -> Table:
        """The normalized table."""
        return self.norm.normalize(super().table)
