"""What a model computes for records: generated or scored text, or the predictions of a head."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
from jaxtyping import Array, Int

from t5x_like import interop, partitioning
from t5x_like.data import features, specs
from t5x_like.data.records import Record
from t5x_like.data.source import DataSource
from t5x_like.decoding.generate import generate
from t5x_like.decoding.parameters import for_decoding
from t5x_like.decoding.score import score
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.inference.codec import Codec, has_task, vocabularies_for
from t5x_like.inference.examples import Examples, HeadExamples, IdExamples, TextExamples
from t5x_like.inference.layout import Layout
from t5x_like.inference.records import TEXT_FIELD
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Objective
from t5x_like.training import warm_start
from t5x_like.training.program import check_inputs

if TYPE_CHECKING:
    from t5x_like.data.seqio_feed.task_rows import TaskRows

PREDICT, SCORE = "predict", "score"
Batch = Mapping[str, Array]


class Computation(Protocol):
    """Computes results from parameters."""

    def compute(self, params: Any, batch: Batch, example_ids: Int[Array, " batch"], key: jax.Array) -> Any:
        """Computes the results of a batch, `[batch, …]` each. It is compiled once per shape of a batch.

        Args:
          params: Parameters of the model and its heads.
          batch: Model features.
          example_ids: Number of the example of each row, from which its random key derives.
          key: Random key of all examples.
        """


class Predictor(Computation, Protocol):
    """Makes examples of records, loads the parameters and computes results."""

    def examples(self, path: str, records: Sequence[Record]) -> Examples:
        """Returns the examples of records.

        Args:
          path: Path of the records, for messages.
          records: At least one record.

        Raises:
          UserError: A record is invalid; the message has its line.
        """

    def with_decoding(self, decoding: Decoding) -> "Predictor":
        """Returns the predictor with other settings of generation."""

    def load(self, checkpoint_path: str, partitioner: partitioning.Partitioner) -> Any:
        """Returns the parameters at a path, which `compute` reads."""


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """How text is generated or scored.

    Attributes:
      mode: `predict` or `score`.
      eos_id: Token that ends a sequence, or None for that of the vocabulary or the model.
      score_eos: Whether text targets are scored with EOS at their end.
      per_position: Whether the score of each token is returned.
      decoding: How text is generated.
    """

    mode: str = PREDICT
    eos_id: int | None = None
    score_eos: bool = False
    per_position: bool = False
    decoding: Decoding = Decoding()


def predictor_for(
    config: ModelConfig,
    objective: Objective | None,
    data: DataSource | None,
    lengths: Mapping[str, int],
    options: TextOptions = TextOptions(),  # noqa: B008 (frozen)
    vocabulary: Any = None,
) -> Predictor:
    """Returns the predictor of an objective.

    Args:
      config: Configuration of the model, resolved by `models.base.for_platform`.
      objective: The objective; None for sequence-to-sequence generation.
      data: The task, or None.
      lengths: Maximum length of each task feature.
      options: How text is generated or scored.
      vocabulary: Vocabulary of the text in `inputs` and `targets`; None for that of `data`.

    Raises:
      UserError: The settings do not fit together.
    """
    spec = specs.ENCODER_DECODER if objective is None else objective.features
    if predicts_text(spec):
        _check_lengths(lengths)
        layout = Layout.of(spec)
        check_inputs(config, objective, layout.shapes(1, lengths))
        return TextPredictor(config, layout, data, lengths, options, vocabulary)
    if options.mode == SCORE:
        name = type(objective).__name__
        raise UserError(f"MODE=score: {name} predicts no text. Give MODE=predict, whose output has probabilities.")
    if options.decoding != Decoding():
        name = type(objective).__name__
        raise UserError(
            f"DECODING: {name} generates no text. Omit the settings of generation, such as BEAMS and TEMPERATURE."
        )
    return HeadPredictor(config, objective, data, lengths)


def predicts_text(spec: features.FeatureSpec) -> bool:
    """Returns whether a decoder predicts the targets. An auxiliary language model predicts the inputs."""
    return any(feature.name == "decoder_target_tokens" and "targets" in feature.sources for feature in spec.features)


def _check_lengths(lengths: Mapping[str, int]) -> None:
    """Checks that there are lengths of inputs and targets."""
    if missing := {"inputs", "targets"} - set(lengths):
        raise UserError(
            f"TASK_FEATURE_LENGTHS={lengths}: no length for {', '.join(sorted(missing))}. Give both; for a decoder, "
            "inputs are prompts and targets are continuations: "
            "--gin.TASK_FEATURE_LENGTHS=\"{'inputs': 512, 'targets': 128}\""
        )


class TextPredictor:
    """Generates text for records by their `inputs`, or by the columns of a task, or scores their targets.

    Args:
      config: Configuration of the model, resolved by `models.base.for_platform`.
      layout: The layout of inputs and targets in a row.
      data: The task, or None for token ids.
      lengths: Maximum lengths of `inputs` and `targets`.
      options: How text is generated or scored.
      vocabulary: Vocabulary of the text in `inputs` and `targets`; None for that of `data`.

    Attributes:
      decoding: How text is generated, resolved after the first call of `examples`.
    """

    def __init__(
        self,
        config: ModelConfig,
        layout: Layout,
        data: DataSource | None,
        lengths: Mapping[str, int],
        options: TextOptions,
        vocabulary: Any = None,
    ):
        self._config, self._layout, self._data, self._lengths = config, layout, data, lengths
        self._vocabulary = vocabulary
        self._options, self.decoding = options, options.decoding

    def examples(self, path: str, records: Sequence[Record]) -> Examples:
        """Returns the examples of records; see `Predictor`."""
        rows = None
        if TEXT_FIELD in records[0].values or not has_task(self._data):
            vocabularies = vocabularies_for(self._data, [record.values for record in records], self._vocabulary)
        else:
            from t5x_like.data.seqio_feed.task_rows import TaskRows

            vocabularies, rows = self._data.vocabularies(), TaskRows(self._data, path, records)
        if vocabularies is not None and (rows is not None or self._vocabulary is None):
            self._data.check_vocabulary(self._config.vocab_size)
        codec = Codec(
            vocabularies,
            self._lengths,
            self._layout,
            self._options.eos_id,
            interop.eos_id(self._config),
            targets_eos=self._options.score_eos,
            decoding=self.decoding,
        )
        self.decoding = self.decoding.resolve(
            max_length=self._lengths["targets"],
            eos_ids=codec.eos_ids,
            bos_id=self._layout.bos[0] if self._layout.bos else features.BOS_ID,
        )
        found = TextExamples(records, codec, self._layout, self._lengths, self._options.mode, rows)
        found.check(self._config.vocab_size)
        return found

    def with_decoding(self, decoding: Decoding) -> "TextPredictor":
        """Returns the predictor with other settings of generation; see `Predictor`."""
        options = dataclasses.replace(self._options, decoding=decoding)
        return TextPredictor(self._config, self._layout, self._data, self._lengths, options, self._vocabulary)

    def load(self, checkpoint_path: str, partitioner: partitioning.Partitioner) -> Any:
        """Returns the parameters of the model, in the form that decoding reads; see `Predictor`."""
        loaded = warm_start.load_model(checkpoint_path, self._config, partitioner)
        return loaded if self._options.mode == SCORE else partitioner.jit(for_decoding)(loaded)

    def compute(self, params: Any, batch: Batch, example_ids: Int[Array, " batch"], key: jax.Array) -> Any:
        """Returns `Generated` or `Scored`; see `Predictor`."""
        if self._options.mode == SCORE:
            return score(params, batch, per_position=self._options.per_position)
        return generate(params, batch, self.decoding, key, example_ids=example_ids)


@dataclasses.dataclass(frozen=True)
class HeadPredictor:
    """Predicts by the heads of an objective.

    Attributes:
      config: Configuration of the model, resolved by `models.base.for_platform`.
      objective: The objective that owns the heads.
      data: The task whose preprocessors make the examples, or None for token ids.
      lengths: Maximum length of each task feature.
    """

    config: ModelConfig
    objective: Objective
    data: DataSource | None
    lengths: Mapping[str, int]

    def examples(self, path: str, records: Sequence[Record]) -> Examples:
        """Returns the examples of records; see `Predictor`."""
        if not has_task(self.data) and any(isinstance(value, list) for value in records[0].values.values()):
            found = IdExamples(records, self.objective, self.lengths)
            found.check(self.config.vocab_size)
            return found
        rows, spec = self._task_rows(path, records), self.objective.features
        self.data.check_vocabulary(self.config.vocab_size)
        return HeadExamples(rows, spec, self.data.batch_shapes(spec))

    def _task_rows(self, path: str, records: Sequence[Record]) -> "TaskRows":
        """Returns the records in a task."""
        if not has_task(self.data):
            raise UserError(
                f"{path}: {type(self.objective).__name__} needs a task that makes its features. Give "
                "--gin.MIXTURE_OR_TASK_NAME=…, the task that the model was trained on."
            )
        from t5x_like.data.seqio_feed.task_rows import TaskRows

        return TaskRows(self.data, path, records, text_field=TEXT_FIELD if path.endswith(".txt") else None)

    def with_decoding(self, decoding: Decoding) -> "HeadPredictor":
        """Returns the same predictor; see `Predictor`."""
        return self

    def load(self, checkpoint_path: str, partitioner: partitioning.Partitioner) -> Any:
        """Returns the parameters of the model and its heads; see `Predictor`."""
        return warm_start.load_params(checkpoint_path, self.config, self.objective, partitioner)

    def compute(self, params: Any, batch: Batch, example_ids: Int[Array, " batch"], key: jax.Array) -> Any:
        """Returns the outputs of the objective by name; see `Predictor`."""
        return self.objective.predict(params, batch)
