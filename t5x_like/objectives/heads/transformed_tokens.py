"""The heads of ModernBERT and EuroBERT in transformers: a dense layer, GELU and a classifier of one state or of all.

ModernBERT's head is its masked-LM head up to the norm, from which a warm start takes it, and a classifier.
"""

import dataclasses
import types
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t5x_like.data import specs
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout
from t5x_like.layers import initializers
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.projections import Projection
from t5x_like.objectives import masked_lm
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.heads import HeadWithDropout, Hidden
from t5x_like.objectives.heads.head_modules import ClassifierHead, Layers, Logits, States

Pooling = Literal["first", "mean"]
LatePooling = Literal["first", "mean", "late"]


def mean_over_tokens(
    states: Float[Array, "batch length size"], real: Bool[Array, "batch length"]
) -> Float[Array, "batch 1 size"]:
    """Returns the mean of the states of real tokens; 0 for rows without one."""
    count = jnp.sum(real, axis=1)[:, None, None]
    return jnp.sum(jnp.where(real[..., None], states, 0), axis=1, keepdims=True) / jnp.maximum(count, 1)


class TransformedHead(nnx.Module):
    """A dense layer without a bias, exact GELU, a norm without a bias, dropout, and a classifier.

    Args:
      config: Configuration of the model, with a `norm_epsilon`.
      outputs: Number of outputs.
      rate: Dropout rate of the inputs of the classifier.
      key: Random key for the initial values.

    Attributes:
      dense: Projection with kernel `[embed, embed]`.
      norm: Norm after the activation.
      classifier: Projection with kernel `[embed, outputs]`, computed in float32.
    """

    def __init__(self, config: HeadConfig, outputs: int, *, rate: float, key: jax.Array):
        dense_key, key = jax.random.split(key)
        size, init = config.embed_dim, initializers.BERT
        options = {"axes": ("embed", "mlp"), "init": init, "dtype": config.compute_dtype}
        self.dense = Projection((size,), (size,), key=dense_key, **options)
        self.norm = LayerNorm(size, epsilon=config.norm_epsilon, bias=False)
        # The initial values of transformers.
        init = initializers.truncated_normal(size**-0.5)
        self.classifier = Projection((size,), (outputs,), axes=("embed", None), key=key, init=init, bias=True)
        self.dropout = Dropout(rate)

    def __call__(self, states: States, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits; see `HeadModule`."""
        states = self.norm(ACTIVATIONS["gelu_exact"](self.dense(states)))
        return self.classifier(self.dropout(states, dropout_key))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EachTransformedToken(HeadWithDropout):
    """ModernBERT's head for each token."""

    token = "each"
    inputs = specs.ENCODER_INPUTS
    pretrained = types.MappingProxyType({"dense": (f"{masked_lm.NAME}/dense",), "norm": (f"{masked_lm.NAME}/norm",)})

    # Dropout rate of the head (`classifier_dropout` of transformers). None: the `dropout_rate` of the model.
    dropout_rate: float | None = 0.0

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> TransformedHead:
        """Creates the head; see `HeadForm.make`."""
        return TransformedHead(config, outputs, rate=self.rate(config), key=key)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformedToken(EachTransformedToken):
    """ModernBERT's head for a text."""

    token = "first"

    # The state that the head reads: that of the first token, or the mean of all.
    pooling: Pooling = "first"

    def __post_init__(self):
        super().__post_init__()
        _check_pooling(self, Pooling)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns a state per row; see `heads.HeadForm.read`."""
        if self.pooling == "first":
            return super().read(hidden, batch)
        return mean_over_tokens(hidden, batch[self.segments] != 0)


class Tokens(NamedTuple):
    """What `LateHead` reads.

    Attributes:
      hidden: States of the tokens.
      real: Whether a token is not padding.
    """

    hidden: Hidden
    real: Bool[Array, "batch length"]


class LateHead(ClassifierHead):
    """A head that computes the mean of the logits of all tokens."""

    def __call__(self, states: Tokens, dropout_key: jax.Array | None = None) -> Logits:
        """Computes logits; see `HeadModule`."""
        return mean_over_tokens(super().__call__(states.hidden, dropout_key), states.real)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseToken(HeadWithDropout):
    """EuroBERT's head for a text: a dense layer, exact GELU and a classifier.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    inputs = specs.ENCODER_INPUTS
    layers = Layers("dense", activation=ACTIVATIONS["gelu_exact"])

    # Dropout rate of the inputs of the classifier; transformers has none.
    dropout_rate: float | None = 0.0
    # What the head reads: the state of the first token, the mean of all states, or with `late` all states, whose logits
    # are averaged.
    pooling: LatePooling = "late"

    def __post_init__(self):
        super().__post_init__()
        _check_pooling(self, LatePooling)

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> ClassifierHead:
        """Creates the head; see `HeadForm.make`."""
        kind = LateHead if self.pooling == "late" else ClassifierHead
        return kind(config, outputs, self.layers, rate=self.rate(config), key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States | Tokens:
        """Returns a state per row, or all states; see `heads.HeadForm.read`."""
        if self.pooling == "first":
            return super().read(hidden, batch)
        real = batch[self.segments] != 0
        return Tokens(hidden, real) if self.pooling == "late" else mean_over_tokens(hidden, real)


def _check_pooling(head: HeadWithDropout, known: type) -> None:
    if head.pooling not in get_args(known):
        names = ", ".join(get_args(known))
        raise UserError(f"pooling={head.pooling!r} of {type(head).__name__}: unknown. Give one of {names}.")
