"""Next-sentence prediction: whether the second segment followed the first in its document."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data import features
from t5x_like.kernels.cross_entropy import from_logits
from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Scalar, Terms
from t5x_like.runtime.recorded import recorded

NAME = "next_sentence"
# 0: the second segment follows the first, 1: it is a random one.
CLASSES = 2

_OF_MASKED_LM = ("masked_positions", "masked_targets", "masked_weights")


class NextSentenceHead(nnx.Module):
    """The pooler, tanh(W · h + b) of a row's first token, and a classifier over it.

    Attributes:
      pooler: kernel `[embed, embed]` and bias.
      classifier: kernel `[embed, 2]` and bias.
    """

    def __init__(self, config: Any, *, key: jax.Array):
        """Args:
        config: the network's; the head has its `embed_dim`.
        key: for the initial values.
        """
        pooler_key, classifier_key = jax.random.split(key)
        size, init = (config.embed_dim,), initializers.BERT
        self.pooler = Projection(
            size, size, axes=("embed", "mlp"), key=pooler_key, init=init, bias=True, dtype=config.compute_dtype
        )
        # In float32, as all logits.
        self.classifier = Projection(
            size, (CLASSES,), axes=("embed", None), key=classifier_key, init=init, bias=True, dtype="float32"
        )

    def __call__(self, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch 1 classes"]:
        """Logits in float32."""
        return self.classifier(jnp.tanh(self.pooler(hidden[:, :1])))


@recorded
class NextSentence:
    """An encoder tells from the first token whether its two segments belong together (Devlin et al. 2019, section 3.1).

    One term, `next_sentence`: cross-entropy of `next_sentence_label`, a row weighing 1, or 0 where it is all padding.
    Metrics: `next_sentence_loss` in nats per row and `next_sentence_accuracy`.
    """

    features = dataclasses.replace(
        features.SENTENCE_PAIRS,
        features=tuple(f for f in features.SENTENCE_PAIRS.features if f.name not in _OF_MASKED_LM),
        extraordinary=tuple(f for f in features.SENTENCE_PAIRS.extraordinary if f.name not in _OF_MASKED_LM),
    )
    coefficients = {NAME: 1.0}

    def init(self, key: jax.Array, model: Any) -> dict[str, NextSentenceHead]:
        """The head, as `next_sentence`."""
        return {NAME: NextSentenceHead(model.config, key=key)}

    def weights(self, batch: Batch) -> dict[str, Scalar]:
        return {NAME: jnp.sum(_row_weights(batch))}

    def terms(self, params: Mapping[str, Any], batch: Batch, *, dropout_key: jax.Array | None = None) -> Terms:
        return self.terms_of(params, params["model"](batch, dropout_key=dropout_key), batch)

    def terms_of(self, params: Mapping[str, Any], outputs: Outputs, batch: Batch) -> Terms:
        """The term and metrics where the network has been run, as `outputs`."""
        logits = params["objective"][NAME](outputs.hidden)
        entropy = from_logits(logits, batch["next_sentence_label"], _row_weights(batch))
        metrics = {
            "next_sentence_loss": (entropy.nll, entropy.weight),
            "next_sentence_accuracy": (entropy.correct, entropy.weight),
        }
        return Terms(sums={NAME: entropy.total}, metrics=metrics)


def _row_weights(batch: Batch) -> Float[Array, "batch 1"]:
    return jnp.any(batch["encoder_segment_ids"] != 0, axis=1, keepdims=True).astype(jnp.float32)
