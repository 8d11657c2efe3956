"""MobileBERT's transfer of feature maps: layer-normalized hidden states, and their means and variances.

The losses are per token and averaged over the layers, as in the released code, whose coefficients are 100 for the
feature maps, 5000 for the means, 5 for the variances, and 1 for the attention (`AttentionTransfer`).
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.distillation.losses.layerwise import Arrays, LayerLoss, PerToken
from t5x_like.objectives.base import Batch

States = Float[Array, "batch length embed"]
# Added to the variance by the layer norm of the released code.
_EPSILON = 1e-12


class _FeatureMapLoss(LayerLoss):
    same_sizes = ("embed_dim",)
    averages_layers = True

    def per_token(self, heads: Mapping[str, nnx.Module], student: Arrays, teacher: Arrays, batch: Batch) -> PerToken:
        """Computes the loss of a pair of layers; see `LayerLoss.per_token`."""
        return self.error(student["hidden"], teacher["hidden"])

    def error(self, student: States, teacher: States) -> PerToken:
        """Compares the hidden states of each token."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureMap(_FeatureMapLoss):
    """Mean squared error of hidden states after a layer norm without scale and bias.

    Source: MobileBERT (Sun et al. 2020, section 3.5, equation 1); the layer norm follows the released code.
    """

    def error(self, student: States, teacher: States) -> PerToken:
        """Returns the mean over the features of the squared difference."""
        return jnp.mean(jnp.square(_normalize(student) - _normalize(teacher)), axis=-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureMean(_FeatureMapLoss):
    """Squared difference of the means of hidden states over their features.

    Source: the released code of MobileBERT (`beta_distill_factor`).
    """

    def error(self, student: States, teacher: States) -> PerToken:
        """Returns the squared difference of the means."""
        return jnp.square(jnp.mean(student, axis=-1) - jnp.mean(teacher, axis=-1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureVariance(_FeatureMapLoss):
    """Absolute difference of the variances of hidden states over their features.

    Source: the released code of MobileBERT (`gamma_distill_factor`), in the version for TensorFlow 2. The version for
    TensorFlow 1 compares each layer of the student with all layers of the teacher, by a broadcast.
    """

    def error(self, student: States, teacher: States) -> PerToken:
        """Returns the absolute difference of the variances."""
        return jnp.abs(jnp.var(student, axis=-1) - jnp.var(teacher, axis=-1))


def _normalize(x: States) -> States:
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + _EPSILON)
