"""What an objective reads, as plain data: which model features it wants and how each comes from a task's features."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Literal, get_args

from t5x_like.errors import UserError

Role = Literal[
    "tokens",
    "shifted",
    "next",
    "weights",
    "next_weights",
    "last_weights",
    "prefix",
    "segment_ids",
    "positions",
    "row_positions",
]
"""How a model feature is made from its source, a sequence of token ids `[length]`; all are 0 where there is padding:

* `tokens`: the ids themselves;
* `shifted`: the ids one position to the right, the spec's `bos_id` at the start of each packed segment;
* `next`: the ids one position to the left, 0 at the last token of each segment;
* `weights`: 1 where the source has a token;
* `next_weights`: 1 where another token of the same segment follows: where `next` is a token;
* `last_weights`: 1 where the token comes from the last of the joined sources;
* `prefix`: 1 where the token of `shifted` comes from a source before the last one, and at BOS;
* `segment_ids`: 1, 2, … for the examples packed into a row (1 where nothing is packed);
* `positions`: 0, 1, … restarting in each segment;
* `row_positions`: the source holds places, ascending, within the example's part of another source; these are the places
  in that source's whole row.
"""

Source = str | tuple[str, ...]
"""A task feature, or several that are joined one after the other in each example."""

DType = Literal["int32", "float32"]
"""The type of a feature's values: token ids and other whole numbers, or real numbers."""

BOS_ID = 0
EOS_ID = 1
_ID_ROLES = ("tokens", "shifted", "next")
_VALUE_ROLES = (*_ID_ROLES, "row_positions")  # the others tell positions alone


@dataclasses.dataclass(frozen=True)
class ModelFeature:
    """One array `[batch, length]` that a model reads: int32, or float32 where its source is.

    Attributes:
      name: its key in the batch.
      source: the task feature it is made from, or several to be joined; its length is the sum of theirs.
      role: how it is made.
      within: for `row_positions`, the source that the places are in.
    """

    name: str
    source: Source
    role: Role
    within: Source | None = None

    def __post_init__(self):
        if self.role not in get_args(Role):
            raise ValueError(
                f"model feature {self.name!r} has role {self.role!r}; roles are {', '.join(get_args(Role))}"
            )
        if (self.role == "row_positions") != (self.within is not None):
            raise ValueError(
                f"model feature {self.name!r} has role {self.role!r} and within={self.within!r}: `row_positions`, and "
                "no other role, needs the source that its places are in"
            )

    @property
    def sources(self) -> tuple[str, ...]:
        """The task features it is made from."""
        return _names(self.source)


@dataclasses.dataclass(frozen=True)
class TaskFeature:
    """What distinguishes a task feature from a sequence of token ids with a length and padding of its own.

    Attributes:
      name: its key in the task's examples.
      along: another feature that it runs along, item by item: it has that one's length, is trimmed and packed with it,
        and 0 is a value in it like any other.
      length: how many items each example has; none of them is padding.
      dtype: of its values. Real numbers (`float32`) are never padding, and can only be read as `tokens`.
    """

    name: str
    along: str | None = None
    length: int | None = None
    dtype: DType = "int32"

    def __post_init__(self):
        if self.dtype not in get_args(DType):
            raise ValueError(f"task feature {self.name!r}: dtype={self.dtype!r} must be {' or '.join(get_args(DType))}")
        if self.along is not None and self.length is not None:
            raise ValueError(
                f"task feature {self.name!r} has along={self.along!r} and length={self.length!r}: give one of them"
            )
        if self.along is None and self.length is None and self.dtype == "int32":
            raise ValueError(f"task feature {self.name!r}: give along, length or a dtype other than int32")


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """Everything an objective reads.

    Attributes:
      features: the model features.
      packable: whether several examples may share a row, kept apart by segment ids.
      extraordinary: the task features that run along others, have a length of their own or hold real numbers. Every
        other one is a sequence of tokens, at most as long as `TASK_FEATURE_LENGTHS` says.
      bos_id: what `shifted` features begin with; `dataclasses.replace(CAUSAL_LM, bos_id=50256)` is GPT-2's.
    """

    features: tuple[ModelFeature, ...]
    packable: bool
    extraordinary: tuple[TaskFeature, ...] = ()
    bos_id: int = BOS_ID

    def __post_init__(self):
        for kind, names in (
            ("model", [feature.name for feature in self.features]),
            ("task", [feature.name for feature in self.extraordinary]),
        ):
            if twice := sorted(name for name in set(names) if names.count(name) > 1):
                raise ValueError(f"a {kind} feature is declared twice: {twice}")
        read = self.task_features
        for feature in self.extraordinary:
            if feature.along is not None and (feature.along not in read or self.lead(feature.along) != feature.along):
                raise ValueError(
                    f"task feature {feature.name!r} runs along {feature.along!r}, which must be read too and run along "
                    f"no other; read are {', '.join(map(repr, read))}"
                )
            if feature.length is not None and self.packable:
                raise ValueError(
                    f"task feature {feature.name!r} has a fixed length ({feature.length}), which packing cannot keep "
                    "apart: declare packable=False"
                )
        for feature in self.features:
            if set(feature.sources) & set(self.fixed_lengths) and (len(feature.sources), feature.role) != (1, "tokens"):
                raise ValueError(
                    f"{feature.name!r} can only be the `tokens` of {feature.source!r}, whose length is fixed"
                )
            dtypes = {self.task_dtype(name) for name in feature.sources}
            if dtypes != {"int32"} and (len(dtypes), feature.role) != (1, "tokens") and feature.role in _VALUE_ROLES:
                raise ValueError(f"{feature.name!r} can only be the `tokens` of {feature.source!r}, which is float32")
            for name in _names(feature.within or ()):
                if name not in read:
                    raise ValueError(f"{feature.name!r} holds places within {name!r}, which is not read")

    @property
    def task_features(self) -> tuple[str, ...]:
        """The task features that are read, in the order they are first named."""
        return tuple(dict.fromkeys(name for feature in self.features for name in feature.sources))

    @property
    def segment_features(self) -> tuple[str, ...]:
        """The features whose non-zero entries are the real tokens of a batch, one a source."""
        return tuple(feature.name for feature in self.features if feature.role == "segment_ids")

    @property
    def fixed_lengths(self) -> dict[str, int]:
        """The task features of a length of their own, with that length."""
        return {feature.name: feature.length for feature in self.extraordinary if feature.length is not None}

    def task_dtype(self, name: str) -> DType:
        """The type of a task feature's values."""
        return next((feature.dtype for feature in self.extraordinary if feature.name == name), "int32")

    @property
    def dtypes(self) -> dict[str, DType]:
        """Model feature -> the type of its values."""
        return {
            feature.name: self.task_dtype(feature.sources[0]) if feature.role == "tokens" else "int32"
            for feature in self.features
        }

    def is_token_ids(self, name: str) -> bool:
        """Whether a task feature is a sequence of token ids, not numbers along another one or of a fixed length."""
        plain = self.lead(name) == name and name not in self.fixed_lengths
        return plain and self.task_dtype(name) == "int32"

    def id_limits(self, ids: Mapping[str, int]) -> dict[str, int]:
        """The model features that hold token ids, with the number of ids that they may hold: 0 … limit - 1.

        Args:
          ids: task feature -> ids of its vocabulary; features without one, or with 0, are not limited.
        """
        limits = {}
        for feature in self.features:
            known = [ids.get(name) for name in feature.sources]
            if feature.role in _ID_ROLES and all(known) and all(map(self.is_token_ids, feature.sources)):
                limits[feature.name] = max(*known, self.bos_id + 1 if feature.role == "shifted" else 0)
        return limits

    def lead(self, name: str) -> str:
        """The task feature that `name` runs along; itself where it runs along none."""
        return next((f.along for f in self.extraordinary if f.name == name and f.along is not None), name)

    def track(self, source: Source) -> tuple[str, ...]:
        """What counts the items of a source: the features that its own run along."""
        return tuple(self.lead(name) for name in _names(source))

    @property
    def tracks(self) -> tuple[tuple[str, ...], ...]:
        """The different tracks that are read, each laid out once; those of a fixed length are not among them."""
        tracks = dict.fromkeys(self.track(feature.source) for feature in self.features)
        return tuple(track for track in tracks if not set(track) & set(self.fixed_lengths))

    def task_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """The lengths in tokens of the task features that are read.

        Raises:
          UserError: a length is missing or not a positive whole number, or there is no mapping from names to lengths.
        """
        if not isinstance(task_feature_lengths, Mapping):
            raise UserError(
                f"TASK_FEATURE_LENGTHS={task_feature_lengths!r} is not a dictionary. Give a length in tokens per "
                f"feature, such as {dict.fromkeys(self.task_features, 128)}"
            )
        given, fixed = dict(task_feature_lengths), self.fixed_lengths
        needed = [name for name in self.task_features if self.lead(name) == name and name not in fixed]
        if missing := [name for name in needed if name not in given]:
            raise UserError(
                f"TASK_FEATURE_LENGTHS={given} has no length for {', '.join(map(repr, missing))}; this objective reads "
                f"{', '.join(map(repr, needed))}"
            )
        for name in needed:
            if isinstance(given[name], bool) or not isinstance(given[name], int) or given[name] < 1:
                raise UserError(
                    f"TASK_FEATURE_LENGTHS={given}: the length of {name!r} must be a whole number of tokens, at least 1"
                )
        return {name: fixed.get(name) or given[self.lead(name)] for name in self.task_features}

    def model_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """The length in tokens of every model feature, given those of the task features."""
        lengths = self.task_lengths(task_feature_lengths)
        return {feature.name: sum(lengths[name] for name in feature.sources) for feature in self.features}


def _names(source: Source) -> tuple[str, ...]:
    return (source,) if isinstance(source, str) else tuple(source)


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

CAUSAL_LM = FeatureSpec(
    features=(
        ModelFeature("decoder_input_tokens", "targets", "shifted"),
        ModelFeature("decoder_target_tokens", "targets", "tokens"),
        ModelFeature("decoder_loss_weights", "targets", "weights"),
        ModelFeature("decoder_segment_ids", "targets", "segment_ids"),
        ModelFeature("decoder_positions", "targets", "positions"),
    ),
    packable=True,
)
"""A decoder predicts each token of `targets`, the first one from BOS."""

NEXT_TOKEN = FeatureSpec(
    features=(
        ModelFeature("decoder_input_tokens", "targets", "tokens"),
        ModelFeature("decoder_target_tokens", "targets", "next"),
        ModelFeature("decoder_loss_weights", "targets", "next_weights"),
        ModelFeature("decoder_segment_ids", "targets", "segment_ids"),
        ModelFeature("decoder_positions", "targets", "positions"),
    ),
    packable=True,
)
"""A decoder reads `targets` and predicts each token's successor, without BOS: how GPT is trained on windows of text."""

_JOINED = ("inputs", "targets")

PREFIX_LM = FeatureSpec(
    features=(
        ModelFeature("decoder_input_tokens", _JOINED, "shifted"),
        ModelFeature("decoder_target_tokens", _JOINED, "tokens"),
        ModelFeature("decoder_loss_weights", _JOINED, "last_weights"),
        ModelFeature("decoder_segment_ids", _JOINED, "segment_ids"),
        ModelFeature("decoder_positions", _JOINED, "positions"),
        ModelFeature("decoder_prefix", _JOINED, "prefix"),
    ),
    packable=True,
)
"""A decoder reads `inputs`, all of it at once (`decoder_prefix`), and predicts `targets` behind it."""

MASKED_LM = FeatureSpec(
    features=(
        ModelFeature("encoder_input_tokens", "inputs", "tokens"),
        ModelFeature("encoder_segment_ids", "inputs", "segment_ids"),
        ModelFeature("encoder_positions", "inputs", "positions"),
        ModelFeature("masked_positions", "masked_positions", "row_positions", within="inputs"),
        ModelFeature("masked_targets", "targets", "tokens"),
        ModelFeature("masked_weights", "targets", "weights"),
    ),
    packable=True,
    extraordinary=(TaskFeature("masked_positions", along="targets"),),
)
"""An encoder reads corrupted `inputs` and predicts `targets`, which stood at `masked_positions`: as many a row at most
as `TASK_FEATURE_LENGTHS['targets']` says (BERT's max_predictions)."""

SENTENCE_PAIRS = FeatureSpec(
    features=(
        *MASKED_LM.features,
        ModelFeature("token_types", "token_types", "tokens"),
        ModelFeature("next_sentence_label", "next_sentence_label", "tokens"),
    ),
    packable=False,
    extraordinary=(
        *MASKED_LM.extraordinary,
        TaskFeature("token_types", along="inputs"),
        TaskFeature("next_sentence_label", length=1),
    ),
)
"""Masked LM of two segments told apart by `token_types`; the second follows the first (label 0) or is random (1)."""

SPECS = {
    "ENCODER_DECODER": ENCODER_DECODER,
    "CAUSAL_LM": CAUSAL_LM,
    "NEXT_TOKEN": NEXT_TOKEN,
    "PREFIX_LM": PREFIX_LM,
    "MASKED_LM": MASKED_LM,
    "SENTENCE_PAIRS": SENTENCE_PAIRS,
}
_BY_TASK = (SENTENCE_PAIRS, MASKED_LM, ENCODER_DECODER, CAUSAL_LM)


def named(name: str) -> FeatureSpec:
    """The spec of that name, such as `PREFIX_LM`.

    Raises:
      UserError: there is none.
    """
    if name not in SPECS:
        raise UserError(f"there is no feature spec {name!r}; there are {', '.join(SPECS)}")
    return SPECS[name]


def for_task(task_features: Collection[str]) -> FeatureSpec:
    """The spec that reads most of what a task gives. One with `inputs` and `targets` is read by an encoder-decoder.

    Args:
      task_features: the names of the task's features.

    Raises:
      UserError: none reads a task with these features.
    """
    for spec in _BY_TASK:
        if set(spec.task_features) <= set(task_features):
            return spec
    raise UserError(
        f"a task with the features {', '.join(map(repr, task_features)) or 'none'} is read by no objective: give it "
        "`targets`, or `inputs` and `targets`"
    )
