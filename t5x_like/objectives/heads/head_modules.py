"""The modules of heads for classification, which the forms in `heads` make."""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers import initializers
from t5x_like.layers.initializers import Initializer
from t5x_like.layers.projections import Projection
from t5x_like.objectives.base import HeadConfig

States = Float[Array, "batch positions embed"]
Logits = Float[Array, "batch positions outputs"]


class HeadModule(Protocol):
    """The module of a head."""

    def __call__(self, states: States, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits, or scores, in float32.

        Args:
          states: The hidden states that `heads.HeadForm.read` returns.
          dropout_key: Random key; None disables dropout.
        """


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers of a head: a dense layer, or none, and a linear classifier.

    Attributes:
      dense: Name of the dense layer, which has a bias; None for the classifier alone.
      activation: Activation of the dense layer.
      init: Initializer of the kernels. Layers are equal whatever it is, because modules that are made do not use it.
      bias: Whether the classifier has a bias.
      size: Size of the dense layer, which is not sharded; None for the size of the hidden states.
      input_rate: Dropout rate of the inputs of the dense layer; None for the rate of the head.
    """

    dense: str | None = None
    activation: Callable[[Array], Array] = jnp.tanh
    init: Initializer = dataclasses.field(default=initializers.normal(0.02), compare=False)
    bias: bool = True
    size: int | None = None
    input_rate: float | None = 0.0


class ClassifierHead(nnx.Module):
    """Dropout, a dense layer with an activation, dropout, and a linear classifier; or dropout and the classifier alone.

    Args:
      config: Configuration of the model.
      outputs: Number of outputs.
      layers: The layers.
      rate: Dropout rate of the inputs of the classifier.
      key: Random key for the initial values.
      broadcast_dims: Dimensions of the states that share one dropout mask.

    Attributes:
      classifier: Projection with kernel `[size, outputs]`, computed in float32.

    The dense layer, with kernel `[embed, size]`, is the attribute that `layers.dense` names, such as `pooler`.
    """

    def __init__(
        self,
        config: HeadConfig,
        outputs: int,
        layers: Layers,
        *,
        rate: float,
        key: jax.Array,
        broadcast_dims: tuple[int, ...] = (),
    ):
        size, axis = layers.size or config.embed_dim, None if layers.size else "embed"
        self.layers = layers
        if layers.dense is not None:
            dense_key, key = jax.random.split(key)
            sizes, axes = ((config.embed_dim,), (size,)), ("embed", None if layers.size else "mlp")
            options = {"init": layers.init, "bias": True, "dtype": config.compute_dtype}
            setattr(self, layers.dense, Projection(*sizes, axes=axes, key=dense_key, **options))
        # Logits are float32 in every objective.
        options = {"init": layers.init, "bias": layers.bias, "dtype": "float32"}
        self.classifier = Projection((size,), (outputs,), axes=(axis, None), key=key, **options)
        self.dropout = Dropout(rate, broadcast_dims)

    def __call__(self, states: States, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits; see `HeadModule`."""
        if self.layers.dense is not None:
            states, dropout_key = self._drop_inputs(states, dropout_key)
            states = self.layers.activation(getattr(self, self.layers.dense)(states))
        return self.classifier(self.dropout(states, dropout_key))

    def _drop_inputs(self, states: States, key: jax.Array | None) -> tuple[States, jax.Array | None]:
        """Applies dropout before the dense layer, and returns the key for dropout after it."""
        if self.layers.input_rate is None:
            input_key, key = split_key(key, 2)
            return self.dropout(states, input_key), key
        input_key = None if key is None else jax.random.fold_in(key, 0)
        return Dropout(self.layers.input_rate)(states, input_key), key
