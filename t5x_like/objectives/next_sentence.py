"""Next-sentence prediction: an encoder predicts whether two segments are consecutive."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data import specs
from t5x_like.layers import initializers
from t5x_like.layers.projections import Projection
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, HeadConfig, Objective, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.labels import row_weights
from t5x_like.objectives.prediction import Prediction, identity
from t5x_like.recorded import recorded

NAME = "next_sentence"
_MASKED_LM_FEATURES = ("masked_positions", "masked_targets", "masked_weights")


class NextSentenceHead(nnx.Module):
    """BERT's pooler, tanh(W · h + b) of the first token of each row, and a classifier.

    Args:
      config: Configuration of the model.
      key: Random key for the initial values.
      pooler: Whether there is a pooler; without it, the classifier reads the hidden state.
      classes: Number of classes.

    Attributes:
      pooler: Projection with kernel `[embed, embed]` and bias; only if there is one.
      classifier: Projection with kernel `[embed, classes]` and bias, computed in float32.
    """

    def __init__(self, config: HeadConfig, *, key: jax.Array, pooler: bool = True, classes: int = 2):
        pooler_key, classifier_key = jax.random.split(key)
        size, init = (config.embed_dim,), initializers.BERT
        if pooler:
            self.pooler = Projection(
                size, size, axes=("embed", "mlp"), key=pooler_key, init=init, bias=True, dtype=config.compute_dtype
            )
        # Logits are float32 in every objective.
        self.classifier = Projection(
            size, (classes,), axes=("embed", None), key=classifier_key, init=init, bias=True, dtype="float32"
        )
        self.has_pooler = pooler

    def __call__(self, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch 1 classes"]:
        """Returns the logits of each row in float32."""
        first = hidden[:, :1]
        return self.classifier(jnp.tanh(self.pooler(first)) if self.has_pooler else first)


@recorded
class NextSentence(Objective):
    """Predicts whether the two segments of a row are consecutive (Devlin et al. 2019, section 3.1).

    The prediction reads the hidden state of the first token. The only term is `next_sentence`: the cross-entropy of
    `next_sentence_label`. A row has weight 1, or 0 if it is padding or its label is unknown, which is below 0. The
    metrics are `next_sentence_loss` in nats per row and `next_sentence_accuracy`.

    Args:
      pooler: Whether the head has BERT's pooler. The released MobileBERT has none.

    Attributes:
      metrics_prefix: Prefix of the names of the metrics.
      head: Name of the head.
      classes: Number of classes. 0: the second segment follows the first; 1: it is a random segment.
    """

    metrics_prefix = NAME
    head = NAME
    classes = 2
    features = dataclasses.replace(
        specs.SENTENCE_PAIRS,
        features=tuple(f for f in specs.SENTENCE_PAIRS.features if f.name not in _MASKED_LM_FEATURES),
        aligned_features=tuple(f for f in specs.SENTENCE_PAIRS.aligned_features if f.name not in _MASKED_LM_FEATURES),
    )
    coefficients = {NAME: 1.0}

    def __init__(self, *, pooler: bool = True):
        self.pooler = pooler

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, NextSentenceHead]:
        """Initializes the head; see `Objective.init`."""
        return {self.head: NextSentenceHead(model.config, key=key, pooler=self.pooler, classes=self.classes)}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 1 for rows that are not padding; see `Objective.weights`."""
        return {NAME: row_weights(rows)}

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch 1"]]:
        """Returns 0 for rows whose label is unknown, which is below 0; see `Objective.target_weights`."""
        return {NAME: self.weights(rows)[NAME] * (rows["next_sentence_label"] >= 0)}

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns the distribution over the classes of each row; see `Objective.read`."""
        logits, weights = params["objective"][self.head](outputs.hidden), self.weights(rows)[NAME]
        known = self.target_weights(rows)[NAME] if "next_sentence_label" in rows else None
        predicted = Prediction(logits, identity, weights, rows.get("next_sentence_label"), known)
        metrics = {f"{self.metrics_prefix}_loss": "nll", f"{self.metrics_prefix}_accuracy": "correct"}
        return Pass(rows, outputs, {NAME: predicted.with_cross_entropy(NAME, metrics)})

    def predict(self, found: Pass) -> dict[str, Array]:
        """Returns the class of each row as `predictions` `[batch, 1]`, and `probabilities` `[batch, classes]`."""
        logits = found.predictions[NAME].hidden
        return {
            "predictions": jnp.argmax(logits, axis=-1).astype(jnp.int32),
            "probabilities": jax.nn.softmax(logits[:, 0], axis=-1),
        }
