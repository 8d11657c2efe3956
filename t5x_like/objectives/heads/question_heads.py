"""The published heads of question answering in which the end of an answer depends on its start.

`ConditionalSpanExtraction` gets a form as its `head`, which makes the three modules, and says where an answer may be.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from t5x_like.data import specs
from t5x_like.data.features import FeatureSpec
from t5x_like.decoding.spans import NULL_POSITION
from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout
from t5x_like.layers import initializers
from t5x_like.layers.initializers import Initializer
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.layers.norms import LayerNorm
from t5x_like.layers.projections import Projection
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.heads import last_token
from t5x_like.objectives.labels import real_tokens

States = Float[Array, "batch positions embed"]
Scores = Float[Array, "batch positions"]
# Epsilon of the norm in XLNet's head.
_NORM_EPSILON = 1e-12


class PairScore(Protocol):
    """A module that scores pairs of hidden states."""

    def __call__(self, first: States, second: States, dropout_key: jax.Array | None = None) -> Scores:
        """Returns a score per pair in float32.

        Args:
          first: The first state of each pair.
          second: Its second state.
          dropout_key: Random key; None disables dropout.
        """


class QuestionForm(Protocol):
    """What the head reads, and its modules.

    Attributes:
      inputs: The features that the model reads, made from the task features `inputs` and `token_types`.
    """

    inputs: FeatureSpec

    def make(self, config: HeadConfig, *, key: jax.Array) -> "QuestionHead":
        """Creates the head.

        Args:
          config: Configuration of the model.
          key: Random key for the initial values.
        """

    def allowed(self, rows: Batch) -> Bool[Array, "batch length"]:
        """Returns the positions where an answer may start or end, and the position that stands for no answer."""

    def summary(self, hidden: States, rows: Batch) -> States:
        """Returns the state of the row that the score of no answer reads, `[batch, 1, embed]`."""


class QuestionHead(nnx.Module):
    """The modules of a head.

    Args:
      start: Projection with kernel `[embed, 1]`, computed in float32: the score of each position as the start.
      end: Score of a start and a position as the end.
      no_answer: Score of a state of the row (`QuestionForm.summary`), and of the mean over the states of its starts.

    Attributes: the arguments.
    """

    def __init__(self, start: Projection, end: PairScore, no_answer: PairScore):
        self.start, self.end, self.no_answer = start, end, no_answer


class DensePairScore(nnx.Module):
    """A dense layer on two joined states, an activation, and a linear score.

    Args:
      config: Configuration of the model.
      hidden_dim: Size of the dense layer.
      activation: Its activation.
      init: Initializer of both kernels.
      key: Random key for the initial values.

    Attributes:
      dense: Projection with kernel `[2 · embed, hidden_dim]` and bias.
      score: Projection with kernel `[hidden_dim, 1]` and bias, computed in float32.
    """

    def __init__(
        self,
        config: HeadConfig,
        hidden_dim: int,
        *,
        activation: Callable[[Array], Array],
        init: Initializer,
        key: jax.Array,
    ):
        dense_key, score_key = jax.random.split(key)
        self.dense = Projection(
            *((2 * config.embed_dim,), (hidden_dim,)),
            axes=("embed", "mlp"),
            key=dense_key,
            init=init,
            bias=True,
            dtype=config.compute_dtype,
        )
        self.score = _score(hidden_dim, init, score_key)
        self.activation = activation

    def __call__(self, first: States, second: States, dropout_key: jax.Array | None = None) -> Scores:
        """Returns a score per pair; see `PairScore`."""
        return self.score(self.activation(self.dense(jnp.concatenate([first, second], axis=-1))))[..., 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElectraQuestion:
    """The head of ELECTRA's released fine-tuning code (`finetune/qa/qa_tasks.py`), without dropout.

    Answers are in the second text, or at the first token, which stands for no answer. Kernels are drawn from Glorot's
    uniform distribution.
    """

    inputs = specs.ENCODER_INPUTS_WITH_TYPES

    # Size of the dense layers.
    hidden_dim: int = 512

    def __post_init__(self):
        if self.hidden_dim < 1:
            raise UserError(f"hidden_dim={self.hidden_dim} of ElectraQuestion is not positive. Give a size.")

    def make(self, config: HeadConfig, *, key: jax.Array) -> QuestionHead:
        """Creates the head; see `QuestionForm.make`."""
        start_key, end_key, no_answer_key = jax.random.split(key, 3)
        init, activation = initializers.glorot_uniform, ACTIVATIONS["gelu_exact"]
        end, no_answer = (
            DensePairScore(config, self.hidden_dim, activation=activation, init=init, key=each)
            for each in (end_key, no_answer_key)
        )
        return QuestionHead(_score(config.embed_dim, init, start_key), end, no_answer)

    def allowed(self, rows: Batch) -> Bool[Array, "batch length"]:
        """Returns the tokens of the second text and the first token; see `QuestionForm.allowed`."""
        real = real_tokens(rows)
        return real & ((rows["token_types"] > 0) | (jnp.arange(real.shape[1]) == NULL_POSITION))

    def summary(self, hidden: States, rows: Batch) -> States:
        """Returns the state of the first token; see `QuestionForm.summary`."""
        return hidden[:, :1]


class NormedPairScore(nnx.Module):
    """A dense layer on two joined states, tanh, LayerNorm, and a linear score: the end of an answer in XLNet.

    Args:
      config: Configuration of the model.
      init: Initializer of both kernels.
      key: Random key for the initial values.

    Attributes:
      dense: Projection with kernel `[2 · embed, embed]` and bias.
      norm: Norm of its activations.
      score: Projection with kernel `[embed, 1]` and bias, computed in float32.
    """

    def __init__(self, config: HeadConfig, *, init: Initializer, key: jax.Array):
        dense_key, score_key = jax.random.split(key)
        self.dense, self.norm = _joined(config, init, dense_key), LayerNorm(config.embed_dim, epsilon=_NORM_EPSILON)
        self.score = _score(config.embed_dim, init, score_key)

    def __call__(self, first: States, second: States, dropout_key: jax.Array | None = None) -> Scores:
        """Returns a score per pair; see `PairScore`. The state of the second position comes first."""
        return self.score(self.norm(jnp.tanh(self.dense(jnp.concatenate([second, first], axis=-1)))))[..., 0]


class NoAnswerScore(nnx.Module):
    """A dense layer on two joined states, tanh, dropout, and a linear score without bias: no answer in XLNet.

    Args:
      config: Configuration of the model.
      rate: Dropout rate.
      init: Initializer of both kernels.
      key: Random key for the initial values.

    Attributes:
      dense: Projection with kernel `[2 · embed, embed]` and bias.
      score: Projection with kernel `[embed, 1]`, computed in float32.
    """

    def __init__(self, config: HeadConfig, rate: float, *, init: Initializer, key: jax.Array):
        dense_key, score_key = jax.random.split(key)
        self.dense, self.dropout = _joined(config, init, dense_key), Dropout(rate)
        self.score = _score(config.embed_dim, init, score_key, bias=False)

    def __call__(self, first: States, second: States, dropout_key: jax.Array | None = None) -> Scores:
        """Returns a score per pair; see `PairScore`. The state of the starts comes first."""
        dense = jnp.tanh(self.dense(jnp.concatenate([second, first], axis=-1)))
        return self.score(self.dropout(dense, dropout_key))[..., 0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class XLNetQuestion:
    """The head of XLNet's released fine-tuning code (`function_builder.get_qa_outputs`).

    The score of no answer reads the last token, [CLS]. Answers are in the second text, or at the first token, which
    stands for no answer. Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    inputs = specs.ENCODER_INPUTS_WITH_TYPES

    # Dropout rate of the score of no answer. None: the `dropout_rate` of the model.
    dropout_rate: float | None = None

    def __post_init__(self):
        if self.dropout_rate is not None and not 0 <= self.dropout_rate < 1:
            raise UserError(f"dropout_rate={self.dropout_rate} of the head is out of range. Give a rate in [0, 1).")

    def make(self, config: HeadConfig, *, key: jax.Array) -> QuestionHead:
        """Creates the head; see `QuestionForm.make`."""
        start_key, end_key, no_answer_key = jax.random.split(key, 3)
        init = initializers.normal(0.02)
        rate = config.dropout_rate if self.dropout_rate is None else self.dropout_rate
        return QuestionHead(
            _score(config.embed_dim, init, start_key),
            NormedPairScore(config, init=init, key=end_key),
            NoAnswerScore(config, rate, init=init, key=no_answer_key),
        )

    def allowed(self, rows: Batch) -> Bool[Array, "batch length"]:
        """Returns the tokens of the second text, and the first token; see `QuestionForm.allowed`."""
        real = real_tokens(rows)
        return real & ((rows["token_types"] == 1) | (jnp.arange(real.shape[1]) == NULL_POSITION))

    def summary(self, hidden: States, rows: Batch) -> States:
        """Returns the state of the last token; see `QuestionForm.summary`."""
        return last_token(hidden, rows["encoder_segment_ids"])


def _joined(config: HeadConfig, init: Initializer, key: jax.Array) -> Projection:
    sizes = (2 * config.embed_dim,), (config.embed_dim,)
    return Projection(*sizes, axes=("embed", "mlp"), key=key, init=init, bias=True, dtype=config.compute_dtype)


def _score(inputs: int, init: Initializer, key: jax.Array, *, bias: bool = True) -> Projection:
    return Projection((inputs,), (1,), axes=("embed", None), key=key, init=init, bias=bias, dtype="float32")
