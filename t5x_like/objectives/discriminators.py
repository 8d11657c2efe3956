"""What a model predicts from a text in which a generator has replaced tokens: which tokens it replaced."""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.kernels import binary_cross_entropy
from t5x_like.layers import initializers
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.projections import Projection
from t5x_like.objectives.base import Batch, HeadConfig, Params
from t5x_like.objectives.labels import real_tokens
from t5x_like.objectives.masked_lm import gather_positions
from t5x_like.objectives.prediction import LogitTerm, Prediction, identity

NAME = "replaced_tokens"

Tokens = Int[Array, "batch length"]
Hidden = Float[Array, "batch length embed"]


class Discriminator(Protocol):
    """What the model predicts from the text that it reads.

    Attributes:
      term: Name of its term and of its head.
      coefficient: Usual factor of its term.
    """

    term: str
    coefficient: float

    def make(self, config: HeadConfig, *, key: jax.Array) -> nnx.Module:
        """Creates the head.

        Args:
          config: Configuration of the model.
          key: Random key for the initial values.
        """

    def weights(self, rows: Batch) -> Float[Array, "batch positions"]:
        """Returns 1 where the model predicts something; see `Objective.weights`."""

    def read(self, params: Params, hidden: Hidden, tokens: Tokens, original: Tokens, rows: Batch) -> Prediction:
        """Returns the prediction, with its losses and metrics.

        Args:
          params: The model and the heads.
          hidden: Last hidden states of the model.
          tokens: Token ids that the model read.
          original: Token ids before masking.
          rows: The features, with the masked text.
        """

    def predict(self, found: Prediction) -> Array:
        """Returns the predictions `[batch, positions]`."""


class ReplacedTokenHead(nnx.Module):
    """A dense layer with the activation of the model, and one logit per token.

    Args:
      config: Configuration of the model.
      activation: Name of the activation.
      key: Random key for the initial values.

    Attributes:
      dense: Projection with kernel `[embed, embed]` and bias.
      classifier: Projection with kernel `[embed, 1]` and bias, computed in float32.
    """

    def __init__(self, config: HeadConfig, activation: str, *, key: jax.Array):
        dense_key, classifier_key = jax.random.split(key)
        size, dtype = (config.embed_dim,), config.compute_dtype
        self.dense = Projection(
            size, size, axes=("embed", "mlp"), key=dense_key, init=initializers.BERT, bias=True, dtype=dtype
        )
        # The released code gives this layer no initializer.
        init = initializers.glorot_uniform
        self.classifier = Projection(
            size, (1,), axes=("embed", None), key=classifier_key, init=init, bias=True, dtype="float32"
        )
        self.activation = activation

    def __call__(self, hidden: Float[Array, "batch length embed"]) -> Float[Array, "batch length 1"]:
        """Returns the logit of each token in float32; positive for a replaced one."""
        return self.classifier(ACTIVATIONS[self.activation](self.dense(hidden)))


@dataclasses.dataclass(frozen=True)
class ReplacedTokens:
    """ELECTRA: the model says of every token, special tokens included, whether it is not the original one.

    The term is `replaced_tokens`, the binary cross-entropy per token. The metrics are `loss`, `accuracy`, and
    `replaced`, the share of replaced tokens.
    """

    term = NAME
    coefficient = 50.0

    def make(self, config: Any, *, key: jax.Array) -> ReplacedTokenHead:
        """Creates the head; see `Discriminator.make`."""
        return ReplacedTokenHead(config, config.activations[0], key=key)

    def weights(self, rows: Batch) -> Float[Array, "batch length"]:
        """Returns 1 for all tokens; see `Discriminator.weights`."""
        return real_tokens(rows).astype(jnp.float32)

    def read(self, params: Params, hidden: Hidden, tokens: Tokens, original: Tokens, rows: Batch) -> Prediction:
        """Returns one logit per token; see `Discriminator.read`."""
        return self._detect(params, hidden, tokens != original, rows)

    def predict(self, found: Prediction) -> Float[Array, "batch positions"]:
        """Returns the probability that each token is replaced."""
        return jax.nn.sigmoid(found.hidden[:, :, 0])

    def _detect(self, params: Params, hidden: Hidden, is_replaced: Array, rows: Batch) -> Prediction:
        replaced, weights = is_replaced.astype(jnp.int32), self.weights(rows)
        metrics = {
            "loss": lambda sums: (sums["loss"], sums["weight"]),
            "accuracy": lambda sums: (sums["correct"], sums["weight"]),
            "replaced": lambda sums: (sums["positive"], sums["weight"]),
        }
        loss = LogitTerm(NAME, binary_cross_entropy.position_loss(replaced, weights), metrics=metrics)
        return Prediction(params["objective"][NAME](hidden), identity, weights, replaced, weights, (loss,))


@dataclasses.dataclass(frozen=True)
class MaskedReplacedTokens(ReplacedTokens):
    """ELECTRA 15 %: as `ReplacedTokens`, for the masked tokens alone (Clark et al. 2020, section 3.4)."""

    def weights(self, rows: Batch) -> Float[Array, "batch predictions"]:
        """Returns 1 for the masked tokens; see `Discriminator.weights`."""
        return rows["masked_weights"].astype(jnp.float32)

    def read(self, params: Params, hidden: Hidden, tokens: Tokens, original: Tokens, rows: Batch) -> Prediction:
        """Returns one logit per masked token; see `Discriminator.read`."""
        at = rows["masked_positions"]
        replaced = jnp.take_along_axis(tokens != original, at, axis=1)
        return self._detect(params, gather_positions(hidden, at), replaced, rows)
