"""Wrappers of heads for tasks that choose the global tokens of Longformer, or mark the sentences that ETC reads."""

import dataclasses

from t5x_like.data.features import FeatureSpec, ModelFeature, TaskFeature
from t5x_like.models.longformer import GLOBAL_TOKENS
from t5x_like.objectives.heads.wrapper import HeadWrapper
from t5x_like.objectives.sentence_masked_lm import with_sentences

# The feature of a task, as long as its `inputs`, that is 1 for global tokens.
TASK_FEATURE = "global_tokens"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskGlobalTokens(HeadWrapper):
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
class TaskSentences(HeadWrapper):
    """Any head, with a global token per sentence; sentences begin at the task feature `global_positions`."""

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the head's model reads, and where sentences begin."""
        return with_sentences(self.form.inputs)
