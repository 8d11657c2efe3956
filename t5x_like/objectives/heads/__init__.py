"""The published forms of heads for classification: which hidden states a head reads, and how it computes logits.

An objective gets a form as its `head`. The form determines the features that the model reads, and makes the head's
module. Most forms are a `Head` with settings of their own. The forms and their names in transformers:

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
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.data import features, specs
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.layers import initializers
from t5x_like.layers.initializers import Initializer
from t5x_like.layers.mlp import ACTIVATIONS, relu
from t5x_like.objectives import next_sentence, sentence_structure
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.heads.head_modules import ClassifierHead, HeadModule, Layers, States
from t5x_like.objectives.masked_lm import gather_positions

Hidden = Float[Array, "batch length embed"]


class HeadForm(Protocol):
    """What a head reads, and how.

    Attributes:
      each_token: Whether the head reads each token, or one state per row.
      inputs: The features that the model reads, made from the task features `inputs` and `token_types`.
      pretrained: Part of the head -> names of the same part in pretrained heads; see `Objective.other_names`.
    """

    each_token: bool
    inputs: FeatureSpec
    pretrained: Mapping[str, tuple[str, ...]]

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> HeadModule:
        """Creates the head.

        Args:
          config: Configuration of the model.
          outputs: Number of labels, or 1 for a score.
          key: Random key for the initial values.
        """

    def read(self, hidden: Hidden, batch: Batch) -> Any:
        """Returns what the head reads: hidden states, except for `birnn_head.BiRNN`.

        Args:
          hidden: Last hidden states of the model.
          batch: The features of the batch.
        """


def check_form(head: HeadForm, *, each_token: bool) -> None:
    """Checks that a head reads what its objective predicts for.

    Args:
      head: Form of the head.
      each_token: Whether the objective predicts for each token, or for each row.

    Raises:
      UserError: The form reads something else.
    """
    if head.each_token != each_token:
        reads, needs = ("each token", "one per row") if head.each_token else ("one token per row", "each token")
        raise UserError(
            f"HEAD=@heads.{type(head).__name__}(): reads {reads}, but the objective needs {needs}. Give "
            f"{'EachToken or EachDecoderToken' if each_token else 'a head that reads one token, such as LastToken'}."
        )


def check_rate(name: str, rate: float | None, owner: str = "the head") -> None:
    """Checks a dropout rate of a head.

    Args:
      name: Name of the setting.
      rate: The rate; None stands for the dropout rate of the model.
      owner: What the rate belongs to, for the message.

    Raises:
      UserError: The rate is not in [0, 1).
    """
    if rate is not None and not 0 <= rate < 1:
        raise UserError(f"{name}={rate} of {owner} is out of range. Give a rate in [0, 1).")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """A head that reads one token of each row, or each token; the published forms are its subclasses.

    A subclass sets these attributes of the class, and has fields for the settings that a run may change.

    Attributes:
      token: The token that the head reads: the first one, the last one that is not padding, or each.
      inputs: See `HeadForm`.
      segments: The feature that is 0 for padding of what the head reads.
      layers: The layers of the head.
      pretrained: See `HeadForm`.
    """

    token: ClassVar[Literal["first", "last", "each"]] = "first"
    inputs: ClassVar[FeatureSpec] = specs.ENCODER_INPUTS_WITH_TYPES
    segments: ClassVar[str] = "encoder_segment_ids"
    layers: ClassVar[Layers] = Layers()
    pretrained: ClassVar[Mapping[str, tuple[str, ...]]] = types.MappingProxyType({})

    @property
    def each_token(self) -> bool:
        """Whether the head reads each token; see `HeadForm`."""
        return self.token == "each"

    def rate(self, config: HeadConfig) -> float:
        """Returns the dropout rate of the head for a model."""
        return 0.0

    def layers_for(self, config: HeadConfig) -> Layers:
        """Returns the layers of the head for a model."""
        return self.layers

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> ClassifierHead:
        """Creates the head; see `HeadForm.make`."""
        return ClassifierHead(config, outputs, self.layers_for(config), rate=self.rate(config), key=key)

    def read(self, hidden: Hidden, batch: Batch) -> States:
        """Returns the hidden states of the tokens; see `HeadForm.read`."""
        if self.token == "last":
            return last_token(hidden, batch[self.segments])
        return hidden if self.each_token else hidden[:, :1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadWithDropout(Head):
    """A head with dropout. A comment above each field documents it."""

    # Dropout rate of the head (`classifier_dropout` of transformers). None: the `dropout_rate` of the model.
    dropout_rate: float | None = None

    def __post_init__(self):
        check_rate("dropout_rate", self.dropout_rate)

    def rate(self, config: HeadConfig) -> float:
        """Returns the dropout rate of the head for a model."""
        return config.dropout_rate if self.dropout_rate is None else self.dropout_rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledFirstToken(HeadWithDropout):
    """BERT's head (Devlin et al. 2019, section 4.1): pooler of the first token, dropout, classifier.

    Initial values are as in pretraining heads. A warm start takes the pooler of a pretrained next-sentence head,
    if there is one.
    """

    layers = Layers("pooler", init=initializers.BERT)
    pretrained = types.MappingProxyType(
        {"pooler": tuple(f"{name}/pooler" for name in (next_sentence.NAME, sentence_structure.NAME))}
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledLastToken(HeadWithDropout):
    """BERT's head on the last token, the final [SEP], for a left-to-right BERT, whose first token sees itself alone.

    Initial values are as in `PooledFirstToken`.
    """

    token = "last"
    layers = Layers("pooler", init=initializers.BERT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SummaryLastToken(HeadWithDropout):
    """XLNet's head (`modeling.summarize_sequence`): dense, tanh, dropout, classifier of the last token, <cls>.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    token = "last"
    layers = Layers("pooler")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstToken(HeadWithDropout):
    """Dropout and a classifier of the first token, no pooler: the head of the released MobileBERT and ELECTRA."""

    # Initializer of the classifier, such as `initializers.glorot_uniform`, ELECTRA's. None: BERT's.
    init: Initializer | None = None

    def layers_for(self, config: HeadConfig) -> Layers:
        """Returns the classifier with the initializer."""
        return Layers(init=self.init or initializers.BERT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseFirstToken(HeadWithDropout):
    """RoBERTa's head (fairseq): dropout, dense, tanh, dropout, classifier of the first token.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    inputs = specs.ENCODER_INPUTS
    layers = Layers("dense", input_rate=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeluFirstToken(HeadWithDropout):
    """ELECTRA's head in transformers: dropout, dense, exact GELU, dropout, classifier of the first token.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    layers = Layers("dense", activation=ACTIVATIONS["gelu_exact"], input_rate=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeluPooledFirstToken(HeadWithDropout):
    """DeBERTa's head: dropout, dense, exact GELU (the context pooler), dropout, classifier of the first token.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    # Dropout rate before the dense layer (`pooler_dropout` of transformers).
    pooler_rate: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        check_rate("pooler_rate", self.pooler_rate)

    def layers_for(self, config: HeadConfig) -> Layers:
        """Returns the layers with dropout before the pooler."""
        return Layers("pooler", activation=ACTIVATIONS["gelu_exact"], input_rate=self.pooler_rate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReluFirstToken(HeadWithDropout):
    """DistilBERT's head in transformers: dense, ReLU, dropout, classifier of the first token.

    Kernels are drawn from a normal distribution with standard deviation 0.02.
    """

    inputs = specs.ENCODER_INPUTS
    layers = Layers("dense", activation=relu)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastToken(Head):
    """The head of decoders in transformers: a linear classifier without bias or dropout, of the last token.

    The kernel is drawn from a normal distribution with standard deviation 0.02.
    """

    token = "last"
    inputs = specs.DECODER_INPUTS
    segments = "decoder_segment_ids"
    layers = Layers(bias=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReluLastToken(HeadWithDropout):
    """The head of the LSTM classifiers of Dai and Le (2015): dense, ReLU, dropout, classifier of the last token.

    Kernels are drawn from Glorot's uniform distribution, as in the code that Google released (adversarial_text).
    """

    token = "last"
    inputs = specs.DECODER_INPUTS
    segments = "decoder_segment_ids"

    # Size of the dense layer.
    size: int = 30

    def __post_init__(self):
        super().__post_init__()
        if self.size < 1:
            raise UserError(f"size={self.size} of the head is not positive. Give a positive integer.")

    def layers_for(self, config: HeadConfig) -> Layers:
        """Returns the layers with the size."""
        return Layers("dense", activation=relu, init=initializers.glorot_uniform, size=self.size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ShiftedInputs(HeadWithDropout):
    """A head on a decoder that reads the encoder's inputs, shifted right by one position."""

    segments = "decoder_segment_ids"

    # Token id that the decoder's inputs begin with: 2 for BART, 0 for T5.
    bos_id: int = features.BOS_ID

    def __post_init__(self):
        super().__post_init__()
        if self.bos_id < 0:
            raise UserError(f"bos_id={self.bos_id} is not a token id. Give an id of at least 0.")

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the model reads."""
        return dataclasses.replace(specs.SHIFTED_INPUTS, bos_id=self.bos_id)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderLastToken(_ShiftedInputs):
    """BART's head (Lewis et al. 2020, section 3.1): RoBERTa's head on the last token of the decoder.

    The decoder reads the encoder's inputs, shifted right by one position, and its state at the last of them is read.
    With the special tokens of BART and T5 this is EOS, whose state in transformers' `BartForSequenceClassification` is
    read too.
    """

    token = "last"

    # Standard deviation of the initial kernels. None: 1 / √embed_dim, as in transformers' T5.
    initial_stddev: float | None = 0.02

    def __post_init__(self):
        super().__post_init__()
        if self.initial_stddev is not None and self.initial_stddev <= 0:
            raise UserError(f"initial_stddev={self.initial_stddev} is not positive. Give a positive number.")

    def layers_for(self, config: HeadConfig) -> Layers:
        """Returns the layers with the standard deviation."""
        stddev = config.embed_dim**-0.5 if self.initial_stddev is None else self.initial_stddev
        return Layers("dense", init=initializers.normal(stddev), input_rate=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EachToken(HeadWithDropout):
    """The head of BERT and RoBERTa for tagging (Devlin et al. 2019, section 5.3): dropout, classifier of each token."""

    token = "each"
    layers = Layers(init=initializers.BERT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EachDecoderToken(HeadWithDropout):
    """The head of decoders for tagging in transformers: dropout and a classifier per token of the decoder.

    The kernel is drawn from a normal distribution with standard deviation 0.02.
    """

    token = "each"
    inputs = specs.DECODER_INPUTS
    segments = "decoder_segment_ids"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EachShiftedToken(_ShiftedInputs):
    """The head of BART and T5 for question answering in transformers: dropout and a classifier per decoder position.

    The decoder reads the encoder's inputs, shifted right by one position. The kernel is drawn from a normal
    distribution with standard deviation 0.02.
    """

    token = "each"


def last_token(hidden: Hidden, segments: Int[Array, "batch length"]) -> States:
    """Returns the hidden state of the last token of each row that is not padding, `[batch, 1, embed]`."""
    return gather_positions(
        hidden, jnp.max(jnp.where(segments != 0, jnp.arange(segments.shape[1]), 0), axis=1, keepdims=True)
    )
