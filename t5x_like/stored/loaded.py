"""A model at a path, with what it predicts."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from t5x_like.checkpoints import checkpoint_choice
from t5x_like.data import specs
from t5x_like.data.features import FeatureSpec
from t5x_like.data.source import DataSource
from t5x_like.decoding.settings import Decoding
from t5x_like.models import build
from t5x_like.models.base import Model, ModelConfig, for_platform
from t5x_like.objectives.base import Objective
from t5x_like.partitioning import Partitioner
from t5x_like.runtime import distributed
from t5x_like.stored import run_tokenizer, run_vocabulary, warm_start
from t5x_like.stored.weight_source import InitialWeights

if TYPE_CHECKING:
    from t5x_like.vocabularies.base import Vocabulary


class Prompts(Protocol):
    """Prompts of several runs, with one of which each record is read; see `inference.prompt_bank.PromptBank`."""

    runs: Mapping[str, str]

    def adapted(self, config: ModelConfig) -> ModelConfig:
        """Returns the configuration of a model with these prompts instead of its own."""

    def add(
        self, params: Mapping[str, Any], config: ModelConfig, partitioner: Partitioner, path: str
    ) -> dict[str, Any]:
        """Returns the parameters of a model with these prompts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model with what it predicts. Its parameters are read on demand. `OpenModel` also predicts.

    Attributes:
      path: A run directory, one of its checkpoints, a Hugging Face directory, or a T5X checkpoint.
      config: Configuration of the model. Fields that are left to the platform are None.
      objective: What the model predicts, by its heads if it has any; None for sequence-to-sequence generation.
      checkpoint: Which checkpoint of a run.
      network: Name of the network of the run that the model is; None for its model.
      data: The task whose preprocessors and vocabularies encode text, or a source with only a vocabulary. None for
        token ids.
      task_feature_lengths: Maximum length of each task feature in tokens.
      decoding: How text is generated.
      other_vocabulary: Whether text may have another vocabulary than the model.
      averaged: Whether to read averages of parameters; see `weight_source.InitialWeights`.
      partitioner: Device mesh and sharding rules.
      prompts: Prompts of several runs, one of which each record reads; None for the prompt of the model, if it has one.
    """

    path: str
    config: ModelConfig
    objective: Objective | None = None
    checkpoint: str | int = checkpoint_choice.LATEST
    network: str | None = None
    data: DataSource | None = None
    task_feature_lengths: Mapping[str, int] = dataclasses.field(default_factory=dict)
    decoding: Decoding = Decoding()
    other_vocabulary: bool = False
    averaged: bool = True
    partitioner: Partitioner = dataclasses.field(default_factory=Partitioner)
    prompts: Prompts | None = None

    @functools.cached_property
    def resolved(self) -> ModelConfig:
        """The configuration of the model, with the fields that are left to the platform."""
        config = for_platform(self.config, self.partitioner.platform)
        return config if self.prompts is None else self.prompts.adapted(config)

    @functools.cached_property
    def checkpoint_path(self) -> str:
        """Path of the chosen checkpoint, the same in every process.

        Raises:
          UserError: The checkpoint is not found.
        """
        return checkpoint_choice.choose_together(self.path, self.checkpoint)

    @property
    def features(self) -> FeatureSpec:
        """The features that the objective reads, or those of the texts that the model generates."""
        if self.objective is None:
            return specs.ENCODER_DECODER
        return self.objective.text_features or self.objective.features

    # ---- parameters --------------------------------------------------------------------------------------------------

    @property
    def shapes(self) -> dict[str, Any]:
        """The shapes of the parameters of the model and of the heads of its objective."""
        return build.params_shapes(self.resolved, self.objective, self.partitioner)

    def read(self, checkpoint_path: str | None = None) -> dict[str, Any]:
        """Reads the parameters of the model and of the heads of its objective.

        Args:
          checkpoint_path: The checkpoint to read; None for the chosen one.

        Returns:
          `{"model": …, "objective": …}`.

        Raises:
          UserError: A tensor is missing, has another shape, or belongs to another model.
        """
        stored = self.shapes
        if self.prompts is not None:
            stored = build.params_shapes(self._stored, self.objective, self.partitioner)
        return self._load(stored, checkpoint_path)

    def read_model(self) -> Model:
        """Reads the parameters of the model alone; see `read`."""
        return self._load({"model": build.shapes(self._stored, self.partitioner)})["model"]

    @functools.cached_property
    def params(self) -> dict[str, Any]:
        """The parameters that `read` returns, which stay in memory."""
        return self.read()

    def _load(self, shapes: Mapping[str, Any], path: str | None = None) -> dict[str, Any]:
        """Reads parameters of a checkpoint; None: the chosen one, or another one if its run deletes it meanwhile."""
        if path is not None:
            return self._load_from(shapes, path)
        chosen, params = checkpoint_choice.read(
            *(self.path, self.checkpoint, lambda path: self._load_from(shapes, path)),
            chosen=self.__dict__.get("checkpoint_path"),
        )
        self.__dict__["checkpoint_path"] = chosen  # of the cached property
        return params

    def _load_from(self, shapes: Mapping[str, Any], path: str) -> dict[str, Any]:
        distributed.heartbeat(f"the parameters of {path}")
        source = InitialWeights(path=path, network=self.network, averaged=self.averaged)
        params = warm_start.load(source, shapes, self._stored, self.partitioner)
        return params if self.prompts is None else self.prompts.add(params, self.resolved, self.partitioner, path)

    @property
    def _stored(self) -> ModelConfig:
        """The configuration of the model whose parameters are at the path: `resolved` without `prompts`."""
        return for_platform(self.config, self.partitioner.platform)

    # ---- text --------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def tokenizer(self) -> "Vocabulary | None":
        """The stored vocabulary of a run, which needs no task; None if `data` has another one, or for other paths."""
        return None if self.other_vocabulary else run_vocabulary.of_text(self.path, self.data)

    @functools.cached_property
    def inputs_eos(self) -> bool | None:
        """Whether the `inputs` of a run end with EOS; None if it is not known."""
        return None if self.tokenizer is None else run_vocabulary.inputs_eos(self.path, self.data)

    def check_vocabulary(self, data: DataSource | None, remedy: str = "set OTHER_VOCABULARY=True") -> None:
        """Checks that data has the vocabulary of the model, unless it may have another one.

        Args:
          data: The data; None for token ids.
          remedy: What else to do, for the message.

        Raises:
          UserError: The data has another vocabulary.
        """
        if data is not None and not self.other_vocabulary:
            run_tokenizer.check_checkpoint(self.path, data.text_vocabulary(self.features), remedy)
