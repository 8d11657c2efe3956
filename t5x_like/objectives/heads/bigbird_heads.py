"""Forms of heads that transformers' classes of BigBird have; see `heads`.

* `ActivatedFirstToken`: `BigBirdForSequenceClassification`. The released code has `heads.PooledFirstToken`.
* `FeedForwardEachToken`: `BigBirdForQuestionAnswering`.
"""

import dataclasses

import jax
from flax import nnx

from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers import initializers
from t5x_like.layers.mlp import ACTIVATIONS, MLP
from t5x_like.layers.norms import LayerNorm
from t5x_like.objectives.base import HeadConfig
from t5x_like.objectives.heads import EachToken, GeluFirstToken
from t5x_like.objectives.heads.head_modules import ClassifierHead, Layers, Logits, States


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActivatedFirstToken(GeluFirstToken):
    """Dropout, dense, the activation of the model, dropout, classifier of the first token.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    def layers_for(self, config: HeadConfig) -> Layers:
        """Returns the layers with the activation of the model."""
        return dataclasses.replace(self.layers, activation=ACTIVATIONS[config.activations[0]])


class FeedForwardHead(nnx.Module):
    """A feed-forward block like those of the layers, with its residual sum and norm, and a linear classifier.

    Args:
      config: Configuration of the model.
      outputs: Number of outputs.
      rate: Dropout rate of the input of the block and of its output.
      key: Random key of the initial values.

    Attributes:
      mlp: Feed-forward block.
      norm: Norm of the residual sum.
      classifier: Projection with kernel `[embed, outputs]` and bias, computed in float32.
    """

    def __init__(self, config: HeadConfig, outputs: int, *, rate: float, key: jax.Array):
        mlp_key, classifier_key = jax.random.split(key)
        init = initializers.normal(0.02)
        sizes, options = (config.embed_dim, config.mlp_dim), {"bias": True, "dtype": config.compute_dtype}
        self.mlp = MLP(*sizes, activations=config.activations, init=init, key=mlp_key, **options)
        self.norm = LayerNorm(config.embed_dim, epsilon=config.norm_epsilon)
        self.classifier = ClassifierHead(config, outputs, Layers(), rate=0.0, key=classifier_key).classifier
        self.dropout = Dropout(rate)

    def __call__(self, states: States, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits; see `head_modules.HeadModule`."""
        first_key, second_key = split_key(dropout_key, 2)
        update, _ = self.mlp(self.dropout(states, first_key))
        return self.classifier(self.norm(self.dropout(update, second_key) + states))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedForwardEachToken(EachToken):
    """Dropout, a feed-forward block with residual sum and norm, and a classifier of each token."""

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> FeedForwardHead:
        """Creates the head; see `HeadForm.make`."""
        return FeedForwardHead(config, outputs, rate=self.rate(config), key=key)
