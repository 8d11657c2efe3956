"""Losses between the self-attention of student and teacher."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.distillation.losses.layerwise import Arrays, LayerLoss, PerToken
from t5x_like.kernels import divergence
from t5x_like.kernels.divergence import Divergence
from t5x_like.kernels.masks import MASK_VALUE
from t5x_like.objectives.base import Batch

SCORES = "attention/scores"
Scores = Float[Array, "batch heads query key"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionScoresMSE(LayerLoss):
    """Mean squared error of the attention scores before the softmax, per query, summed over the pairs of layers.

    The error of a query is the mean over heads and over the keys of the whole row, in which masked keys count as equal.
    Source: TinyBERT (Jiao et al. 2020, equation 7), whose code sets masked scores to 0. It averages over queries of
    padding as well; here these do not count.
    """

    reads = (SCORES,)
    same_sizes = ("num_heads",)

    def per_token(self, heads: Mapping[str, nnx.Module], student: Arrays, teacher: Arrays, batch: Batch) -> PerToken:
        """Computes the loss of a pair of layers; see `LayerLoss.per_token`."""
        ours, theirs = (jnp.where(x[SCORES] > MASK_VALUE / 2, x[SCORES], 0.0) for x in (student, teacher))
        return jnp.mean(jnp.square(ours - theirs), axis=(1, 3))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionKL(LayerLoss):
    """KL(teacher || student) of the attention probabilities, in nats per query, summed over the pairs of layers.

    The divergence of a query is averaged over heads. Source: MiniLM (Wang et al. 2020, arXiv:2002.10957, equation 5)
    for the last layers.
    """

    reads = (SCORES,)
    same_sizes = ("num_heads",)

    def per_token(self, heads: Mapping[str, nnx.Module], student: Arrays, teacher: Arrays, batch: Batch) -> PerToken:
        """Computes the loss of a pair of layers; see `LayerLoss.per_token`."""
        return compare(divergence.forward_kl, student[SCORES], teacher[SCORES])


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionTransfer(LayerLoss):
    """Cross-entropy of the student's attention with the teacher's, in nats per query, averaged over the layers.

    The cross-entropy of a query is averaged over heads. Source: MobileBERT (Sun et al. 2020, equation 2, a KL
    divergence); its code computes the cross-entropy, which has the same gradient.
    """

    reads = (SCORES,)
    same_sizes = ("num_heads",)
    averages_layers = True

    def per_token(self, heads: Mapping[str, nnx.Module], student: Arrays, teacher: Arrays, batch: Batch) -> PerToken:
        """Computes the loss of a pair of layers; see `LayerLoss.per_token`."""
        return compare(divergence.cross_entropy, student[SCORES], teacher[SCORES])


def compare(function: Divergence, student: Scores, teacher: Scores) -> PerToken:
    """Returns the mean over heads of a divergence between the softmax of two arrays of scores.

    Args:
      function: The divergence.
      student: Scores of the student. Masked keys have about `MASK_VALUE`, so their probability is 0 in both networks.
      teacher: Scores of the teacher.
    """
    return jnp.mean(function(jax.nn.log_softmax(teacher), jax.nn.log_softmax(student)), axis=1)
