"""The published forms of heads for classification: which hidden states a head reads, and how it computes logits.

An objective gets a form as its `head`. The form determines the features that the model reads, and makes the head's
module. The forms and their names in transformers:

* `PooledFirstToken`: `BertForSequenceClassification`; `PooledLastToken` is its counterpart without a class there;
* `SummaryLastToken`: `XLNetForSequenceClassification`;
* `FirstToken`: `MobileBertForSequenceClassification` without `classifier_activation`;
* `DenseFirstToken`: `RobertaForSequenceClassification`;
* `GeluFirstToken`: `ElectraForSequenceClassification`;
* `GeluPooledFirstToken`: `DebertaForSequenceClassification`, `DebertaV2ForSequenceClassification`;
* `ReluFirstToken`: `DistilBertForSequenceClassification`;
* `LastToken`: `GPT2ForSequenceClassification`, `LlamaForSequenceClassification` and other decoders;
* `ReluLastToken`: LSTMs, without a class there;
* `DecoderLastToken`: `BartForSequenceClassification`, `T5ForSequenceClassification`;
* `EachToken`: `BertForTokenClassification`; `EachDecoderToken`: `GPT2ForTokenClassification`; `EachShiftedToken`:
  `BartForQuestionAnswering`.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.data import features, specs
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.layers import initializers
from t5x_like.layers.initializers import Initializer
from t5x_like.layers.mlp import ACTIVATIONS
from t5x_like.objectives import next_sentence, sentence_structure
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.heads.head_modules import DenseHead, Head, LinearHead, PooledHead, ReluHead, States
from t5x_like.objectives.masked_lm import gather_positions

Hidden = Float[Array, "batch length embed"]


class HeadForm(Protocol):
    """What a head reads, and how.

    Attributes:
      each_token: whether the head reads each token, or one state per row.
      inputs: the features that the model reads, made from the task features `inputs` and `token_types`.
      pretrained: part of the head -> names of the same part in pretrained heads; see `Objective.other_names`.
    """

    each_token: bool
    inputs: FeatureSpec
    pretrained: Mapping[str, tuple[str, ...]]

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> Head:
        """Creates the head.

        Args:
          config: configuration of the model.
          outputs: number of labels, or 1 for a score.
          key: random key for the initial values.
        """

    def read(self, hidden: Hidden, batch: Batch) -> Any:
        """Returns what the head reads: hidden states, except for `birnn_head.BiRNN`.

        Args:
          hidden: last hidden states of the model.
          batch: the features of the batch.
        """


def check_form(head: HeadForm, *, each_token: bool) -> None:
    """Checks that a head reads what its objective predicts for.

    Args:
      head: form of the head.
      each_token: whether the objective predicts for each token, or for each row.

    Raises:
      UserError: the form reads something else.
    """
    if head.each_token != each_token:
        reads, needs = ("each token", "one per row") if head.each_token else ("one token per row", "each token")
        raise UserError(
            f"HEAD=@heads.{type(head).__name__}(): reads {reads}, but the objective needs {needs}. Give "
            f"{'EachToken or EachDecoderToken' if each_token else 'a head that reads one token, such as LastToken'}."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Form:
    """The setting that all forms with dropout share. A comment above each field documents it."""

    each_token = False
    pretrained = types.MappingProxyType({})

    # Dropout rate of the head (`classifier_dropout` of transformers). None: the `dropout_rate` of the model.
    dropout_rate: float | None = None

    def __post_init__(self):
        if self.dropout_rate is not None and not 0 <= self.dropout_rate < 1:
            raise UserError(f"dropout_rate={self.dropout_rate} of the head is out of range. Give a rate in [0, 1).")

    def rate(self, config: HeadConfig) -> float:
        """Returns the dropout rate of the head for a model."""
        return config.dropout_rate if self.dropout_rate is None else self.dropout_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledFirstToken(_Form):
    """BERT's head (Devlin et al. 2019, section 4.1): pooler of the first token, dropout, classifier.

    Initial values are as in pretraining heads. A warm start takes the pooler of a pretrained next-sentence head,
    if there is one.
    """

    inputs = specs.ENCODER_INPUTS_WITH_TYPES
    pretrained = types.MappingProxyType(
        {"pooler": tuple(f"{name}/pooler" for name in (next_sentence.NAME, sentence_structure.NAME))}
    )

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> PooledHead:
        """Creates the head; see `HeadForm.make`."""
        return PooledHead(config, outputs, rate=self.rate(config), init=initializers.BERT, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden state of the first token; see `HeadForm.read`."""
        return hidden[:, :1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledLastToken(_Form):
    """BERT's head on the last token, the final [SEP], for a left-to-right BERT, whose first token sees itself alone.

    Initial values are as in `PooledFirstToken`.
    """

    inputs = specs.ENCODER_INPUTS_WITH_TYPES

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> PooledHead:
        """Creates the head; see `HeadForm.make`."""
        return PooledHead(config, outputs, rate=self.rate(config), init=initializers.BERT, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden state of the last token that is not padding; see `HeadForm.read`."""
        return last_token(hidden, batch["encoder_segment_ids"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class SummaryLastToken(_Form):
    """XLNet's head (`modeling.summarize_sequence`): dense, tanh, dropout, classifier of the last token, <cls>.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    inputs = specs.ENCODER_INPUTS_WITH_TYPES

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> PooledHead:
        """Creates the head; see `HeadForm.make`."""
        return PooledHead(config, outputs, rate=self.rate(config), init=initializers.normal(0.02), key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden state of the last token that is not padding; see `HeadForm.read`."""
        return last_token(hidden, batch["encoder_segment_ids"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstToken(_Form):
    """Dropout and a classifier of the first token, no pooler: the head of the released MobileBERT and ELECTRA."""

    inputs = specs.ENCODER_INPUTS_WITH_TYPES

    # Initializer of the classifier, such as `initializers.glorot_uniform`, ELECTRA's. None: BERT's.
    init: Initializer | None = None

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> LinearHead:
        """Creates the head; see `HeadForm.make`."""
        init = self.init or initializers.BERT
        return LinearHead(config, outputs, rate=self.rate(config), init=init, bias=True, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden state of the first token; see `HeadForm.read`."""
        return hidden[:, :1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseFirstToken(_Form):
    """RoBERTa's head (fairseq): dropout, dense, tanh, dropout, classifier of the first token.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    inputs = specs.ENCODER_INPUTS

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> DenseHead:
        """Creates the head; see `HeadForm.make`."""
        return DenseHead(config, outputs, rate=self.rate(config), init=initializers.normal(0.02), key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden state of the first token; see `HeadForm.read`."""
        return hidden[:, :1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeluFirstToken(_Form):
    """ELECTRA's head in transformers: dropout, dense, exact GELU, dropout, classifier of the first token.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    inputs = specs.ENCODER_INPUTS_WITH_TYPES

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> DenseHead:
        """Creates the head; see `HeadForm.make`."""
        rate, activation = self.rate(config), ACTIVATIONS["gelu_exact"]
        return DenseHead(config, outputs, rate=rate, init=initializers.normal(0.02), key=key, activation=activation)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden state of the first token; see `HeadForm.read`."""
        return hidden[:, :1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeluPooledFirstToken(_Form):
    """DeBERTa's head: dropout, dense, exact GELU (the context pooler), dropout, classifier of the first token.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    inputs = specs.ENCODER_INPUTS_WITH_TYPES

    # Dropout rate before the dense layer (`pooler_dropout` of transformers).
    pooler_rate: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.pooler_rate < 1:
            raise UserError(f"pooler_rate={self.pooler_rate} of the head is out of range. Give a rate in [0, 1).")

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> PooledHead:
        """Creates the head; see `HeadForm.make`."""
        options = {"rate": self.rate(config), "pooler_rate": self.pooler_rate, "activation": ACTIVATIONS["gelu_exact"]}
        return PooledHead(config, outputs, init=initializers.normal(0.02), key=key, **options)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden state of the first token; see `HeadForm.read`."""
        return hidden[:, :1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReluFirstToken(_Form):
    """DistilBERT's head in transformers: dense, ReLU, dropout, classifier of the first token.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    inputs = specs.ENCODER_INPUTS

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> ReluHead:
        """Creates the head; see `HeadForm.make`."""
        return ReluHead(config, outputs, rate=self.rate(config), init=initializers.normal(0.02), key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden state of the first token; see `HeadForm.read`."""
        return hidden[:, :1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastToken:
    """The head of decoders in transformers: a linear classifier without bias or dropout, of the last token.

    The kernel is drawn from a normal distribution with standard deviation 0.02.
    """

    each_token = False
    inputs = specs.DECODER_INPUTS
    pretrained = types.MappingProxyType({})

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> LinearHead:
        """Creates the head; see `HeadForm.make`."""
        return LinearHead(config, outputs, rate=0.0, init=initializers.normal(0.02), bias=False, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden state of the last token that is not padding; see `HeadForm.read`."""
        return last_token(hidden, batch["decoder_segment_ids"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReluLastToken(_Form):
    """The head of the LSTM classifiers of Dai and Le (2015): dense, ReLU, dropout, classifier of the last token.

    Kernels are drawn from Glorot's uniform distribution, as in the code that Google released (adversarial_text).
    """

    inputs = specs.DECODER_INPUTS

    # Size of the dense layer.
    size: int = 30

    def __post_init__(self):
        super().__post_init__()
        if self.size < 1:
            raise UserError(f"size={self.size} of the head is not positive. Give a positive integer.")

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> ReluHead:
        """Creates the head; see `HeadForm.make`."""
        init = initializers.glorot_uniform
        return ReluHead(config, outputs, rate=self.rate(config), init=init, key=key, size=self.size)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden state of the last token that is not padding; see `HeadForm.read`."""
        return last_token(hidden, batch["decoder_segment_ids"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderLastToken(_Form):
    """BART's head (Lewis et al. 2020, section 3.1): RoBERTa's head on the last token of the decoder.

    The decoder reads the encoder's inputs, shifted right by one position, and its state at the last of them is read.
    With the special tokens of BART and T5 this is EOS, whose state in transformers' `BartForSequenceClassification` is
    read too.
    """

    # Token id that the decoder's inputs begin with: 2 for BART, 0 for T5.
    bos_id: int = features.BOS_ID
    # Standard deviation of the initial kernels. None: 1 / √embed_dim, as in transformers' T5.
    initial_stddev: float | None = 0.02

    def __post_init__(self):
        super().__post_init__()
        _check_bos(self.bos_id)
        if self.initial_stddev is not None and self.initial_stddev <= 0:
            raise UserError(f"initial_stddev={self.initial_stddev} is not positive. Give a positive number.")

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the model reads."""
        return dataclasses.replace(specs.SHIFTED_INPUTS, bos_id=self.bos_id)

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> DenseHead:
        """Creates the head; see `HeadForm.make`."""
        stddev = config.embed_dim**-0.5 if self.initial_stddev is None else self.initial_stddev
        return DenseHead(config, outputs, rate=self.rate(config), init=initializers.normal(stddev), key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the decoder's hidden state of the last token that is not padding; see `HeadForm.read`."""
        return last_token(hidden, batch["decoder_segment_ids"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class EachToken(_Form):
    """The head of BERT and RoBERTa for tagging (Devlin et al. 2019, section 5.3): dropout, classifier of each token."""

    each_token = True
    inputs = specs.ENCODER_INPUTS_WITH_TYPES

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> LinearHead:
        """Creates the head; see `HeadForm.make`."""
        return LinearHead(config, outputs, rate=self.rate(config), init=initializers.BERT, bias=True, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden states of all tokens; see `HeadForm.read`."""
        return hidden


@dataclasses.dataclass(frozen=True, kw_only=True)
class EachDecoderToken(_Form):
    """The head of decoders for tagging in transformers: dropout and a classifier per token of the decoder.

    The kernel is drawn from a normal distribution with standard deviation 0.02.
    """

    each_token = True
    inputs = specs.DECODER_INPUTS

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> LinearHead:
        """Creates the head; see `HeadForm.make`."""
        return LinearHead(config, outputs, rate=self.rate(config), init=initializers.normal(0.02), bias=True, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden states of all tokens; see `HeadForm.read`."""
        return hidden


@dataclasses.dataclass(frozen=True, kw_only=True)
class EachShiftedToken(_Form):
    """The head of BART and T5 for question answering in transformers: dropout and a classifier per decoder position.

    The decoder reads the encoder's inputs, shifted right by one position. The kernel is drawn from a normal
    distribution with standard deviation 0.02.
    """

    each_token = True

    # Token id that the decoder's inputs begin with: 2 for BART, 0 for T5.
    bos_id: int = features.BOS_ID

    def __post_init__(self):
        super().__post_init__()
        _check_bos(self.bos_id)

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the model reads."""
        return dataclasses.replace(specs.SHIFTED_INPUTS, bos_id=self.bos_id)

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> LinearHead:
        """Creates the head; see `HeadForm.make`."""
        return LinearHead(config, outputs, rate=self.rate(config), init=initializers.normal(0.02), bias=True, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden states of all decoder positions; see `HeadForm.read`."""
        return hidden


def _check_bos(bos_id: int) -> None:
    if bos_id < 0:
        raise UserError(f"bos_id={bos_id} is not a token id. Give an id of at least 0.")


def last_token(hidden: Hidden, segments: Int[Array, "batch length"]) -> States:
    """Returns the hidden state of the last token of each row that is not padding, `[batch, 1, embed]`."""
    return gather_positions(
        hidden, jnp.max(jnp.where(segments != 0, jnp.arange(segments.shape[1]), 0), axis=1, keepdims=True)
    )
