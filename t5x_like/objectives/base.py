"""The interface between training and an objective."""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data.features import FeatureSpec
from t5x_like.data.prompts import PromptFormat
from t5x_like.layers.captures import Edit
from t5x_like.models.base import Batch, ModelConfig
from t5x_like.models.networks import MODEL, NetworkSpec, specs
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.carry import Carry
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.objectives.prediction import Prediction, Scalar
from t5x_like.optimizers.schedules import Schedule

# The model, heads and further networks of a run: `{"model": module, "objective": {HEAD or NETWORK: module}}`. With
# teachers, the key "teachers" is `{NAME: {"model": …, "objective": …}}`.
Params = Mapping[str, Any]


class HeadConfig(Protocol):
    """The fields of a model's configuration that a head needs.

    Attributes:
      embed_dim: Size of a hidden state.
      compute_dtype: Dtype of activations.
      dropout_rate: Dropout rate of the model's blocks.
    """

    embed_dim: int
    dropout_rate: float
    compute_dtype: str


@dataclasses.dataclass(frozen=True)
class Pass:
    """What a forward pass means to an objective. It exists within a trace.

    Attributes:
      rows: The features of a batch or a microbatch, in which each choice is a row; see `passes.flatten_choices`.
      outputs: What the networks computed.
      predictions: Name -> the distributions that the objective predicts, with the losses of their logits. The names
        are the names of the terms, and perhaps further ones.
      sums: Term -> the part of its sum that is not a function of the logits of a prediction.
      metrics: Metric -> (sum, weight), for the metrics that no loss of a prediction gives.
      carry: The state of each network that has one, for the next batch.
      next_stage_features: Feature -> array `[batch, …]`, which joins the batch of the next stages without a gradient;
        see `objectives.staged`. It is empty for an objective that is not a stage.
    """

    rows: Batch
    outputs: Outputs
    predictions: Mapping[str, Prediction]
    sums: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)
    metrics: Mapping[str, tuple[Scalar, Scalar]] = dataclasses.field(default_factory=dict)
    carry: Carry = dataclasses.field(default_factory=dict)
    next_stage_features: Batch = dataclasses.field(default_factory=dict)

    def term_names(self) -> set[str]:
        """Returns the names of all terms: of `sums`, and of the losses of the predictions."""
        return {*self.sums, *(loss.term for each in self.predictions.values() for loss in each.losses)}

    def metric_names(self) -> set[str]:
        """Returns the names of all metrics, with those that the losses of the predictions give."""
        losses = (loss for each in self.predictions.values() for loss in each.losses)
        return {*self.metrics, *(name for loss in losses for name in loss.metrics)}


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How an objective runs its networks.

    Attributes:
      keys: Random keys; without a key, there is no dropout.
      carry: Network -> its state after the batch before; empty without networks with state.
      capture: Names of intermediate arrays to return; see `layers.captures`.
      edits: Interventions in named arrays of the model; see `layers.captures.Edit`.
    """

    keys: Keys = NO_KEYS
    carry: Carry = dataclasses.field(default_factory=dict)
    capture: Sequence[str] = ()
    edits: Sequence[Edit] = ()

    def of_model(self) -> dict[str, Any]:
        """Returns the arguments of a call of the model."""
        carry = {"carry": self.carry[MODEL]} if MODEL in self.carry else {}
        return {"dropout_key": self.keys.dropout, "capture": self.capture, "edits": self.edits, **carry}


# Without dropout, state, captured arrays and edits.
DEFAULT_OPTIONS = RunOptions()


class Objective:
    """Base class of the training objectives.

    The loss of a batch is the sum over the terms of coefficient · sum / weight. An objective describes it in two
    halves: `run` runs the networks, and `read` says what their outputs mean, so that several objectives share one run
    (`Joint`). `objectives.passes` computes losses, metrics and predictions from the result.

    Subclasses set `features` and `coefficients`, and define `weights`, `read` and `predict`; also `init` if they have
    heads, and `target_weights` if targets may be unknown. All methods but `init` get rows: a batch or a microbatch in
    which each choice is a row of its own, see `passes.flatten_choices`.

    Attributes:
      features: The features that the objective reads.
      coefficients: Term -> factor of its normalized loss in the total loss: a number, or a function of the step. Its
        keys are the names of all terms.
      other_names: Parameter or part of a head -> names under which pretrained weights may have it instead, without the
        leading `objective/`. BERT's classifiers begin with the pooler of the next-sentence head.
      labels: Names of the labels that the objective predicts, in the order of their indices; empty if it has none.
      prepare: None, or a function `prepare(params, batch, *, key, step) -> batch` for batches that depend on the
        parameters, such as text that the model generates, or on all rows. It is called with the global batch, before
        weights are computed and the batch is split into microbatches. An array that all rows read has a name that
        begins with `axis_rules.SHARED`. Nothing that it computes has a gradient. At evaluation the key is None, and
        nothing may be random.
      updates_per_batch: Number of updates in a row that read one batch. What `prepare` adds in the first one is kept
        for the others; see `objectives.reused_batches`.
      generator: None, or a function `generator(params) -> model` that returns what generates and scores text, where it
        is not the model itself.
      text_features: The features of the texts that the model generates and scores, for an objective that trains on
        others, such as pairs; None for `features`, or for an objective that does not predict text.
      read_as: Feature -> the name under which the model reads it, where these differ.
      computed_features: Features that `run` computes for the model from features of the batch.
      stages: Name -> stage of a training step (`objectives.staged.Stage`); empty for an objective that is one stage.
      head_form: Form of the head of a downstream task (`objectives.heads`); None if the objective has none.
      predicts: What the head of a text predicts: a `label`, any number of `labels`, `scores`, or the `mean_score` of a
        distribution.
      prompt_format: How a decoder that continues texts reads them; None for other objectives.
      draws: Whether `run` or `read` draws random values for rows, so that they get `Keys.rows` and `Keys.step`.
      updates_rows: Whether the objective makes the updates of a step by itself; see `row_updates.RowObjective`.
    """

    features: FeatureSpec
    coefficients: Mapping[str, float | Schedule]
    other_names: Mapping[str, tuple[str, ...]] = types.MappingProxyType({})
    labels: tuple[str, ...] = ()
    prepare: Callable[..., Batch] | None = None
    updates_per_batch: int = 1
    generator: Callable[[Params], Any] | None = None
    text_features: FeatureSpec | None = None
    read_as: Mapping[str, str] = types.MappingProxyType({})
    computed_features: tuple[str, ...] = ()
    head_form: Any = None
    predicts: Literal["label", "labels", "scores", "mean_score"] = "label"
    prompt_format: PromptFormat | None = None
    draws: bool = False
    updates_rows: bool = False
    stages: "Mapping[str, Any]" = types.MappingProxyType({})

    @property
    def token_features(self) -> tuple[str, ...]:
        """Features of a prepared batch whose entries other than 0 are its tokens."""
        return self.features.segment_features

    def networks(self, config: ModelConfig) -> Mapping[str, NetworkSpec]:
        """Declares the networks beside the model, such as ELECTRA's generator.

        Args:
          config: Configuration of the model.

        Returns:
          Name -> network, which `run` and `read` find complete as `params["objective"][NAME]`. The name `model` stands
          for the model itself, if it shares modules or reads some of the features alone.
        """
        return {}

    def frozen_names(self, config: ModelConfig) -> frozenset[str]:
        """Returns the stored names of parameters that must not be trained, such as those of a reference model.

        Args:
          config: Configuration of the model, resolved by `models.base.for_platform`.
        """
        return frozenset()

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the heads that this objective owns.

        Args:
          key: Random key for the initial values.
          model: The model whose hidden states the heads read.

        Returns:
          Head -> module; empty for an objective without parameters.
        """
        return {}

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Computes `Prediction.weights` from the data alone.

        Args:
          rows: The features. Labels may be missing.

        Returns:
          The weights by the names of the predictions.
        """
        raise NotImplementedError

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Computes the weights of the terms from the data alone: `weights` if all targets are known.

        A term is divided by the sum of its weights over the global batch.

        Args:
          rows: The features.

        Returns:
          The weights by the names of the terms, and perhaps of further predictions.
        """
        return self.weights(rows)

    def read_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of what the model reads, by its names for them; see `read_as`.

        Args:
          shapes: Feature -> shape of the rows.
        """
        return {self.read_as.get(name, name): shape for name, shape in shapes.items()}

    def teacher_shapes(self, teacher: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of what the model of a teacher reads, by its names, for an objective with teachers.

        Args:
          teacher: Name of the teacher.
          shapes: Feature -> shape of the rows.
        """
        raise NotImplementedError

    def initial_carry(self, config: ModelConfig, batch_size: int) -> Carry:
        """Returns the state of the networks before the first batch; empty if no network has state.

        Args:
          config: Configuration of the model, resolved by `models.base.for_platform`.
          batch_size: Rows of a global batch.
        """
        found = {name: each.config.initial_carry(batch_size) for name, each in specs(self, config).items()}
        return {name: arrays for name, arrays in found.items() if arrays}

    def run(self, params: Params, rows: Batch, options: RunOptions = DEFAULT_OPTIONS) -> Outputs:
        """Runs the model.

        Args:
          params: The model and the heads.
          rows: The features.
          options: Random keys, carried state, captured arrays and edits.

        Returns:
          The last hidden states, the captured arrays and the state for the next batch.
        """
        return params["model"](rows, **options.of_model())

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Returns what the outputs mean: the predictions, and the losses of their logits if targets are known.

        Args:
          params: The model and the heads.
          outputs: Result of `run(params, rows, …)`.
          rows: The features. Labels may be missing.
          keys: Random keys of the heads; see `Keys.of_heads`.
        """
        raise NotImplementedError

    def predict(self, found: Pass) -> dict[str, Array]:
        """Predicts the targets.

        Args:
          found: A pass without dropout. Features of targets may be missing, unless a prediction is about them.

        Returns:
          Name -> `[batch, …]`. `predictions` `[batch, n]` is what metrics compare with the targets: a label, a score,
          token ids, … The other names are details, such as `probabilities`. Objectives that predict tokens one after
          another return `scores` instead, the log-probabilities of given targets, since their predictions are
          generated (`t5x_like.decoding`).
        """
        raise NotImplementedError
