"""Wrappers of heads for tasks that choose the global tokens of Longformer, or mark the sentences that ETC reads."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from t5x_like.data.features import FeatureSpec, ModelFeature, TaskFeature
from t5x_like.layers.blocks import Hidden
from t5x_like.models.longformer import GLOBAL_TOKENS
from t5x_like.objectives.base import Batch, HeadConfig
from t5x_like.objectives.heads import HeadForm
from t5x_like.objectives.sentence_masked_lm import with_sentences

# The feature of a task, as long as its `inputs`, that is 1 for global tokens.
TASK_FEATURE = "global_tokens"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _HeadWithFeatures:
    """Any head, with further features of the task. Subclasses add them in `inputs`."""

    # The head.
    form: HeadForm

    @property
    def each_token(self) -> bool:
        """See `HeadForm`."""
        return self.form.each_token

    @property
    def pretrained(self) -> Mapping[str, tuple[str, ...]]:
        """See `HeadForm`."""
        return self.form.pretrained

    @property
    def dropout_rate(self) -> float | None:
        """Dropout rate of the head."""
        return getattr(self.form, "dropout_rate", None)

    def make(self, config: HeadConfig, outputs: int, *, key: jax.Array) -> Any:
        """Creates the head; see `HeadForm.make`."""
        return self.form.make(config, outputs, key=key)

    def read(self, hidden: Hidden, batch: Batch) -> Any:
        """Returns what the head reads; see `HeadForm.read`."""
        return self.form.read(hidden, batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskGlobalTokens(_HeadWithFeatures):
    """Any head, with the global tokens of the task feature `global_tokens`, which is as long as `inputs`."""

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the head's model reads, and the global tokens."""
        inputs = self.form.inputs
        return dataclasses.replace(
            inputs,
            features=(*inputs.features, ModelFeature(GLOBAL_TOKENS, TASK_FEATURE, "tokens")),
            aligned_features=(*inputs.aligned_features, TaskFeature(TASK_FEATURE, aligned_with="inputs")),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSentences(_HeadWithFeatures):
    """Any head, with a global token per sentence; sentences begin at the task feature `global_positions`."""

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the head's model reads, and where sentences begin."""
        return with_sentences(self.form.inputs)
