"""The modules of heads for classification, which the forms in `heads.py` make."""

from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers.initializers import Initializer
from t5x_like.layers.mlp import relu
from t5x_like.layers.projections import Projection
from t5x_like.objectives.base import HeadConfig

States = Float[Array, "batch positions embed"]
Logits = Float[Array, "batch positions outputs"]


class Head(Protocol):
    """The module of a head."""

    def __call__(self, states: States, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits, or scores, in float32.

        Args:
          states: the hidden states that `heads.HeadForm.read` returns.
          dropout_key: random key; None disables dropout.
        """


class LinearHead(nnx.Module):
    """Dropout and a linear classifier.

    Args:
      config: configuration of the model.
      outputs: number of outputs.
      rate: dropout rate.
      init: initializer of the kernel.
      bias: whether the classifier has a bias.
      key: random key for the initial values.
      broadcast_dims: dimensions of the states that share one dropout mask.

    Attributes:
      classifier: projection with kernel `[embed, outputs]`, computed in float32.
    """

    def __init__(
        self,
        config: HeadConfig,
        outputs: int,
        *,
        rate: float,
        init: Initializer,
        bias: bool,
        key: jax.Array,
        broadcast_dims: tuple[int, ...] = (),
    ):
        self.classifier = _classifier(config, outputs, init, key, bias=bias)
        self.dropout = Dropout(rate, broadcast_dims)

    def __call__(self, states: States, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits; see `Head`."""
        return self.classifier(self.dropout(states, dropout_key))


class PooledHead(nnx.Module):
    """BERT's pooler, tanh(W · h + b), then dropout and a linear classifier.

    Args:
      config: configuration of the model.
      outputs: number of outputs.
      rate: dropout rate.
      init: initializer of the kernels.
      key: random key for the initial values.
      activation: activation of the pooler.
      pooler_rate: dropout rate of what the pooler reads.

    Attributes:
      pooler: projection with kernel `[embed, embed]` and bias.
      classifier: projection with kernel `[embed, outputs]` and bias, computed in float32.
    """

    def __init__(
        self,
        config: HeadConfig,
        outputs: int,
        *,
        rate: float,
        init: Initializer,
        key: jax.Array,
        activation: Callable[[Array], Array] = jnp.tanh,
        pooler_rate: float = 0.0,
    ):
        pooler_key, classifier_key = jax.random.split(key)
        self.pooler = _dense(config, init, pooler_key)
        self.classifier = _classifier(config, outputs, init, classifier_key)
        self.dropout, self.pooler_dropout, self.activation = Dropout(rate), Dropout(pooler_rate), activation

    def __call__(self, states: States, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits; see `Head`."""
        pooler_key = None if dropout_key is None else jax.random.fold_in(dropout_key, 0)
        pooled = self.activation(self.pooler(self.pooler_dropout(states, pooler_key)))
        return self.classifier(self.dropout(pooled, dropout_key))


class ReluHead(nnx.Module):
    """DistilBERT's classifier: a dense layer with ReLU, dropout, and a linear classifier.

    Args:
      config: configuration of the model.
      outputs: number of outputs.
      rate: dropout rate.
      init: initializer of the kernels.
      key: random key for the initial values.
      size: size of the dense layer, which is not sharded; None: that of the hidden states.

    Attributes:
      dense: projection with kernel `[embed, size]` and bias.
      classifier: projection with kernel `[size, outputs]` and bias, computed in float32.
    """

    def __init__(
        self,
        config: HeadConfig,
        outputs: int,
        *,
        rate: float,
        init: Initializer,
        key: jax.Array,
        size: int | None = None,
    ):
        dense_key, classifier_key = jax.random.split(key)
        self.dense = _dense(config, init, dense_key, size)
        self.classifier = _classifier(config, outputs, init, classifier_key, size=size)
        self.dropout = Dropout(rate)

    def __call__(self, states: States, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits; see `Head`."""
        return self.classifier(self.dropout(relu(self.dense(states)), dropout_key))


class DenseHead(nnx.Module):
    """Dropout, a dense layer with an activation, dropout, and a linear classifier.

    Args:
      config: configuration of the model.
      outputs: number of outputs.
      rate: dropout rate.
      init: initializer of the kernels.
      key: random key for the initial values.
      activation: activation of the dense layer.

    Attributes:
      dense: projection with kernel `[embed, embed]` and bias.
      classifier: projection with kernel `[embed, outputs]` and bias, computed in float32.
    """

    def __init__(
        self,
        config: HeadConfig,
        outputs: int,
        *,
        rate: float,
        init: Initializer,
        key: jax.Array,
        activation: Callable[[Array], Array] = jnp.tanh,
    ):
        dense_key, classifier_key = jax.random.split(key)
        self.dense = _dense(config, init, dense_key)
        self.classifier = _classifier(config, outputs, init, classifier_key)
        self.dropout, self.activation = Dropout(rate), activation

    def __call__(self, states: States, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits; see `Head`."""
        first_key, second_key = split_key(dropout_key, 2)
        dense = self.activation(self.dense(self.dropout(states, first_key)))
        return self.classifier(self.dropout(dense, second_key))


def _dense(config: HeadConfig, init: Initializer, key: jax.Array, size: int | None = None) -> Projection:
    sizes, axes = ((config.embed_dim,), (size or config.embed_dim,)), ("embed", None if size else "mlp")
    return Projection(*sizes, axes=axes, key=key, init=init, bias=True, dtype=config.compute_dtype)


def _classifier(
    config: HeadConfig,
    outputs: int,
    init: Initializer,
    key: jax.Array,
    *,
    bias: bool = True,
    size: int | None = None,
) -> Projection:
    # Logits are float32 in every objective.
    sizes, axes = ((size or config.embed_dim,), (outputs,)), (None if size else "embed", None)
    return Projection(*sizes, axes=axes, key=key, init=init, bias=bias, dtype="float32")
