"""What an objective reads, as plain data: which model features it wants and how each comes from a task's features."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

Role = Literal["tokens", "shifted", "weights", "segment_ids", "positions"]
"""How a model feature is made from its source, a sequence of token ids `[length]`:

* `tokens`: the ids themselves, 0 where there is padding;
* `shifted`: the ids one position to the right, 0 (BOS) at the start of each packed segment;
* `weights`: 1 where the source has a token, 0 where it has padding;
* `segment_ids`: 1, 2, … for the examples packed into a row (1 where nothing is packed), 0 for padding;
* `positions`: 0, 1, … restarting in each segment, 0 for padding.
"""

BOS_ID = 0


@dataclasses.dataclass(frozen=True)
class ModelFeature:
    """One int32 array `[batch, length]` that a model reads.

    Attributes:
      name: its key in the batch.
      source: the task feature it is made from.
      role: how it is made.
    """

    name: str
    source: str
    role: Role

    def __post_init__(self):
        if self.role not in get_args(Role):
            raise ValueError(
                f"model feature {self.name!r} has role {self.role!r}; roles are {', '.join(get_args(Role))}"
            )


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """Everything an objective reads.

    Attributes:
      features: the model features.
      packable: whether several examples may share a row, kept apart by segment ids.
    """

    features: tuple[ModelFeature, ...]
    packable: bool

    def __post_init__(self):
        names = [feature.name for feature in self.features]
        if len(set(names)) != len(names):
            raise ValueError(
                f"a model feature is declared twice: {sorted(n for n in set(names) if names.count(n) > 1)}"
            )

    @property
    def task_features(self) -> tuple[str, ...]:
        """The task features that are read, in the order they are first named."""
        return tuple(dict.fromkeys(feature.source for feature in self.features))

    @property
    def segment_features(self) -> tuple[str, ...]:
        """The features whose non-zero entries are the real tokens of a batch, one a task feature."""
        return tuple(feature.name for feature in self.features if feature.role == "segment_ids")

    def task_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """The lengths in tokens of the task features that are read.

        Raises:
          ValueError: a length is missing or not a positive whole number.
        """
        given = dict(task_feature_lengths)
        if missing := [name for name in self.task_features if name not in given]:
            raise ValueError(
                f"TASK_FEATURE_LENGTHS={given} has no length for {', '.join(map(repr, missing))}; this objective reads "
                f"{', '.join(map(repr, self.task_features))}"
            )
        for name in self.task_features:
            if isinstance(given[name], bool) or not isinstance(given[name], int) or given[name] < 1:
                raise ValueError(
                    f"TASK_FEATURE_LENGTHS={given}: the length of {name!r} must be a whole number of tokens, at least 1"
                )
        return {name: given[name] for name in self.task_features}

    def model_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """The length in tokens of every model feature, given those of the task features."""
        lengths = self.task_lengths(task_feature_lengths)
        return {feature.name: lengths[feature.source] for feature in self.features}


ENCODER_DECODER = FeatureSpec(
    features=(
        ModelFeature("encoder_input_tokens", "inputs", "tokens"),
        ModelFeature("encoder_segment_ids", "inputs", "segment_ids"),
        ModelFeature("encoder_positions", "inputs", "positions"),
        ModelFeature("decoder_input_tokens", "targets", "shifted"),
        ModelFeature("decoder_target_tokens", "targets", "tokens"),
        ModelFeature("decoder_loss_weights", "targets", "weights"),
        ModelFeature("decoder_segment_ids", "targets", "segment_ids"),
        ModelFeature("decoder_positions", "targets", "positions"),
    ),
    packable=True,
)
"""Text to text: the encoder reads `inputs`, the decoder predicts `targets`."""
