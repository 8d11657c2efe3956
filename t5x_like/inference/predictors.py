"""What a model computes for records: generated or scored text, or the predictions of a head."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
from jaxtyping import Array, Int

from t5x_like.data import features, prompts
from t5x_like.data.records import Record
from t5x_like.decoding.generate import generate
from t5x_like.decoding.parameters import for_decoding
from t5x_like.decoding.score import score
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.inference.codec import Codec, has_task, vocabularies_for
from t5x_like.inference.examples import Examples, HeadExamples, IdExamples, TextExamples
from t5x_like.inference.layout import Layout
from t5x_like.inference.prompt_bank import PromptedExamples
from t5x_like.inference.records import TEXT_FIELD
from t5x_like.interop import model_tokens
from t5x_like.objectives import passes
from t5x_like.objectives.base import Batch
from t5x_like.stored import run_tokenizer
from t5x_like.stored.loaded import Loaded
from t5x_like.training.program import check_inputs

if TYPE_CHECKING:
    from t5x_like.data.seqio_feed.task_rows import TaskRows

PREDICT, SCORE = "predict", "score"
# Task features of the pretraining of encoders: which tokens of a text are predicted.
_PRETRAINING = {"masked_positions", "is_target"}


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

    def load(self) -> Any:
        """Returns the parameters that `compute` reads."""


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """How text is generated or scored.

    Attributes:
      mode: `predict` or `score`.
      eos_id: Token that ends a sequence, or None for EOS of the vocabulary or the model.
      score_eos: Whether text targets are scored with EOS at their end.
      separator: Text after prompts that are text; None for the separator of the objective.
      per_position: Whether the score of each token is returned.
      decoding: How text is generated.
    """

    mode: str = PREDICT
    eos_id: int | None = None
    score_eos: bool = False
    per_position: bool = False
    decoding: Decoding = Decoding()
    separator: str | None = None


def predictor_for(loaded: Loaded, options: TextOptions = TextOptions()) -> Predictor:  # noqa: B008 (frozen)
    """Returns the predictor of a model.

    Args:
      loaded: The model and its objective.
      options: How text is generated or scored.

    Raises:
      UserError: The settings do not fit together.
    """
    if predicts_text(loaded.features):
        _check_lengths(loaded.task_feature_lengths)
        shapes = Layout.of(loaded.features).shapes(1, loaded.task_feature_lengths)
        check_inputs(loaded.resolved, loaded.objective, shapes)
        return TextPredictor(loaded, options)
    name = type(loaded.objective).__name__
    if masked := _PRETRAINING & set(loaded.features.task_features):
        raise UserError(
            f"OBJECTIVE={name}: predicts {', '.join(sorted(masked))} of its own training data, not texts or labels. "
            "Fine-tune the run first (--gin_file=runs/finetune_classification.gin with "
            f"--gin.INITIAL_CHECKPOINT_PATH={loaded.path}), write vectors of texts with `t5x_like embed`, or convert "
            "the run, and fill masks with transformers."
        )
    if loaded.prompts is not None:
        raise UserError(f"PROMPTS: {name} predicts by the head of one run. Give the run alone, as CHECKPOINT_PATH.")
    if options.mode == SCORE:
        raise UserError(f"MODE=score: {name} predicts no text. Give MODE=predict, whose output has probabilities.")
    if options.decoding != Decoding():
        raise UserError(
            f"DECODING: {name} generates no text. Omit the settings of generation, such as BEAMS and TEMPERATURE."
        )
    return HeadPredictor(loaded)


def make_examples(loaded: Loaded, predictor: Predictor, path: str, records: Sequence[Record]) -> Examples:
    """Returns the examples of records, after comparing the vocabulary of their text with the model's.

    Args:
      loaded: The model.
      predictor: Its predictor.
      path: Path of the records, for messages.
      records: At least one record.

    Raises:
      UserError: A record is invalid, or its text has another vocabulary than the model.
    """
    examples = predictor.examples(path, records)
    has_vocabulary_of_run = loaded.tokenizer is not None and TEXT_FIELD in records[0].values
    if not (has_vocabulary_of_run or all(isinstance(record.values.get("inputs"), list) for record in records)):
        loaded.check_vocabulary(loaded.data)
    return examples


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
      loaded: The model, with the maximum lengths of `inputs` and `targets`.
      options: How text is generated or scored.

    Attributes:
      decoding: How text is generated, resolved after the first call of `examples`.
    """

    def __init__(self, loaded: Loaded, options: TextOptions):
        self._loaded, self._options, self.decoding = loaded, options, options.decoding
        self._layout = Layout.of(loaded.features)
        if options.separator is not None and self._layout.encoder:
            raise UserError(
                f"PROMPT_SEPARATOR={options.separator!r}: separates the prompt and the text of a decoder, but an "
                "encoder reads the inputs of this model. Omit it."
            )
        given, trained = options.separator, loaded.features.separator
        self._separator = trained if given is None else given

    def examples(self, path: str, records: Sequence[Record]) -> Examples:
        """Returns the examples of records; see `Predictor`."""
        rows = None
        loaded, data, lengths = self._loaded, self._loaded.data, self._loaded.task_feature_lengths
        if TEXT_FIELD in records[0].values or not has_task(data):
            vocabularies = vocabularies_for(data, [record.values for record in records], loaded.tokenizer)
        else:
            from t5x_like.data.seqio_feed.task_rows import TaskRows

            rows = TaskRows(data, path, records, separator=self._separator)
            vocabularies = data.vocabularies()
        if vocabularies is not None and (rows is not None or loaded.tokenizer is None):
            data.check_vocabulary(loaded.config.vocab_size)
        eos_id = getattr(loaded.objective, "eos_id", None)
        codec = Codec(
            vocabularies,
            lengths,
            self._layout,
            self._options.eos_id,
            model_tokens.eos_id(loaded.config) if eos_id is None else eos_id,
            inputs_eos=self._inputs_eos(reads_task=vocabularies is not None and has_task(data)),
            separator=self._separator or "",
            chat=functools.partial(run_tokenizer.chat_template, loaded.path),
            targets_eos=self._options.score_eos,
            decoding=self.decoding,
        )
        self.decoding = self.decoding.resolve(
            max_length=lengths["targets"],
            eos_ids=codec.eos_ids,
            bos_id=self._layout.bos[0] if self._layout.bos else features.BOS_ID,
        )
        found = TextExamples(path, records, codec, self._layout, lengths, self._options.mode, rows)
        found.check(loaded.config.vocab_size)
        return found if loaded.prompts is None else PromptedExamples(found, path, records, tuple(loaded.prompts.runs))

    def _inputs_eos(self, *, reads_task: bool) -> bool:
        """Returns whether `inputs` that are text end with EOS, as in the training of the objective.

        Args:
          reads_task: Whether the task may be read, which needs TensorFlow.
        """
        if "inputs" not in self._loaded.features.task_features:
            return False  # they are the beginning of `targets`
        if self._separator or self._layout.encoder_bos is not None:
            return False
        found = self._loaded.inputs_eos
        if found is None and reads_task:
            found = prompts.add_eos(self._loaded.data, self._loaded.features).get("inputs")
        return getattr(self._loaded.objective, "inputs_eos", True) if found is None else found

    def load(self) -> Any:
        """Returns the model that generates and scores, in the form that decoding reads; see `Predictor`."""
        generator = getattr(self._loaded.objective, "generator", None)
        model = self._loaded.read_model() if generator is None else generator(self._loaded.read())
        return model if self._options.mode == SCORE else self._loaded.partitioner.jit(for_decoding)(model)

    def compute(self, params: Any, batch: Batch, example_ids: Int[Array, " batch"], key: jax.Array) -> Any:
        """Returns `Generated` or `Scored`; see `Predictor`."""
        if self._options.mode == SCORE:
            return score(params, batch, per_position=self._options.per_position)
        return generate(params, batch, self.decoding, key, example_ids=example_ids)


@dataclasses.dataclass(frozen=True)
class HeadPredictor:
    """Predicts by the heads of an objective.

    Attributes:
      loaded: The model, with the objective that owns the heads.
    """

    loaded: Loaded

    def examples(self, path: str, records: Sequence[Record]) -> Examples:
        """Returns the examples of records; see `Predictor`."""
        loaded, data = self.loaded, self.loaded.data
        if not has_task(data) and any(isinstance(value, list) for value in records[0].values.values()):
            found = IdExamples(path, records, loaded.objective, loaded.task_feature_lengths)
            found.check(loaded.config.vocab_size)
            return found
        rows, spec = self._task_rows(path, records), loaded.features
        data.check_vocabulary(loaded.config.vocab_size)
        return HeadExamples(rows, spec, data.batch_shapes(spec))

    def _task_rows(self, path: str, records: Sequence[Record]) -> "TaskRows":
        """Returns the records in a task."""
        data = self.loaded.data
        if not has_task(data):
            raise UserError(
                f"{path}: {type(self.loaded.objective).__name__} needs a task that makes its features. Give "
                "--gin.MIXTURE_OR_TASK_NAME=…, the task that the model was trained on."
            )
        from t5x_like.data.seqio_feed.task_rows import TaskRows

        return TaskRows(data, path, records, text_field=TEXT_FIELD if path.endswith(".txt") else None)

    def load(self) -> Any:
        """Returns the parameters of the model and its heads; see `Predictor`."""
        return self.loaded.read()

    def compute(self, params: Any, batch: Batch, example_ids: Int[Array, " batch"], key: jax.Array) -> Any:
        """Returns the outputs of the objective by name; see `Predictor`."""
        return passes.predict(self.loaded.objective, params, batch)
