"""Feature specs: the model features that an objective reads, and how each is made from a task's features."""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from t5x_like.data.attached import Attached
from t5x_like.data.task_features import DType, TaskFeature
from t5x_like.errors import UserError

Role = Literal[
    "tokens",
    "shifted",
    "next",
    "weights",
    "next_weights",
    "last_weights",
    "next_last_weights",
    "prefix",
    "segment_ids",
    "positions",
    "row_positions",
]
"""How a model feature is made from its source, a sequence of token ids `[length]`. Every role is 0 at padding.

* `tokens`: the ids themselves.
* `shifted`: the ids shifted right by one position, with the spec's `bos_id` at the start of each packed segment.
* `next`: the ids shifted left by one position, 0 at the last token of each segment.
* `weights`: 1 where the source has a token.
* `next_weights`: 1 where `next` has a token, that is, where another token of the same segment follows.
* `last_weights`: 1 where the token comes from the last of the joined sources.
* `next_last_weights`: 1 where `next` has a token that comes from the last of the joined sources.
* `prefix`: 1 at BOS and where the token of `shifted` comes from a source other than the last.
* `segment_ids`: 1, 2, … for the examples packed into a row; 1 without packing.
* `positions`: 0, 1, …, restarting in each segment.
* `row_positions`: the source holds ascending positions within the example's part of another source. The model feature
  holds the corresponding positions within the whole row of that source.
"""

Source = str | tuple[str, ...]
"""A task feature, or several that are concatenated in each example."""


@dataclasses.dataclass(frozen=True)
class Choices:
    """Sources that are stacked: each becomes one of the choices of a model feature `[batch, choices, length]`.

    Every choice is padded by itself. A choice without tokens is padding.

    Attributes:
      sources: The source of each choice; all have the same maximum length.
    """

    sources: tuple[Source, ...]

    def __post_init__(self):
        if not self.sources:
            raise ValueError("Choices.sources is empty. Give the source of each choice.")


BOS_ID = 0
EOS_ID = 1
_ID_ROLES = ("tokens", "shifted", "next")
_VALUE_ROLES = (*_ID_ROLES, "row_positions")  # the other roles depend only on positions


@dataclasses.dataclass(frozen=True)
class ModelFeature:
    """An array that a model reads, `[batch, length]` or, from `Choices`, `[batch, choices, length]`.

    It is `[batch, length, inner]` for the role `tokens` of a source with `TaskFeature.inner`, and int32, or float32 if
    its source is float32.

    Attributes:
      name: Key in the batch.
      source: Task feature that it is made from, or several to be joined, or the `Choices` to be stacked. Its length is
        the sum of the lengths of joined features.
      role: How it is made; see `Role`.
      within: For the role `row_positions`, the source that the positions refer to; otherwise None.
    """

    name: str
    source: Source | Choices
    role: Role
    within: Source | None = None

    def __post_init__(self):
        if self.role not in get_args(Role):
            raise ValueError(
                f"model feature {self.name!r}: unknown role {self.role!r}. Give one of {', '.join(get_args(Role))}."
            )
        if (self.role == "row_positions") != (self.within is not None):
            raise ValueError(
                f"model feature {self.name!r} has role {self.role!r} and within={self.within!r}: only the role "
                "`row_positions` has a source that its positions refer to. Give `within` for this role alone."
            )
        if self.role == "row_positions" and isinstance(self.source, Choices):
            raise ValueError(f"model feature {self.name!r}: the role `row_positions` has no choices. Give one source.")

    @property
    def parts(self) -> "tuple[ModelFeature, ...]":
        """The rows that it consists of, each with a source of its own: one per choice, or itself without choices."""
        if not isinstance(self.source, Choices):
            return (self,)
        return tuple(dataclasses.replace(self, source=source) for source in self.source.sources)

    @property
    def choices(self) -> tuple[int, ...]:
        """The dimension of its choices: `(number,)` or `()`."""
        return (len(self.source.sources),) if isinstance(self.source, Choices) else ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The task features that it is made from."""
        if isinstance(self.source, Choices):
            return tuple(name for source in self.source.sources for name in _names(source))
        return _names(self.source)

    def stack(self, make: Callable[["ModelFeature"], Any], stack: Callable[[list[Any]], Any]) -> Any:
        """Makes the array of the feature from those of its parts.

        Args:
          make: Function from a part to its rows `[batch, length]`.
          stack: Function that stacks such rows to `[batch, choices, length]`.
        """
        made = [make(part) for part in self.parts]
        return stack(made) if isinstance(self.source, Choices) else made[0]


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """The features that an objective reads.

    Attributes:
      features: The model features.
      packable: Whether several examples may share a row, separated by segment ids.
      aligned_features: The task features that are aligned with others, have a fixed length, hold float32 values or have
        the length of another key. Every other task feature is a sequence of token ids, whose maximum length
        `TASK_FEATURE_LENGTHS` gives.
      bos_id: First id of `shifted` features; GPT-2's is set by `dataclasses.replace(CAUSAL_LM, bos_id=50256)`.
      attached: The arrays that are read from a sidecar of a cache.
      separator: Text between the `inputs` and `targets` of a text-to-text task in one row; None for EOS.
    """

    features: tuple[ModelFeature, ...]
    packable: bool
    aligned_features: tuple[TaskFeature, ...] = ()
    bos_id: int = BOS_ID
    attached: tuple[Attached, ...] = ()
    separator: str | None = None

    def __post_init__(self):
        for kind, names in (
            ("model", [feature.name for feature in (*self.features, *self.attached)]),
            ("task", [feature.name for feature in self.aligned_features]),
        ):
            if duplicates := sorted(name for name in set(names) if names.count(name) > 1):
                raise ValueError(f"{kind} features {duplicates}: declared more than once. Give each name once.")
        read = self.task_features
        for feature in self.aligned_features:
            lead = feature.aligned_with
            if lead is not None and (lead not in read or self.lead(lead) != lead):
                raise ValueError(
                    f"task feature {feature.name!r}: aligned_with={lead!r} is not read, or is itself aligned with "
                    f"another feature. The spec reads {', '.join(map(repr, read))}."
                )
            if feature.length is not None and self.packable:
                raise ValueError(
                    f"task feature {feature.name!r} has a fixed length ({feature.length}), which cannot be packed. "
                    "Declare packable=False."
                )
        for feature in self._parts:
            if set(feature.sources) & set(self.fixed_lengths) and (len(feature.sources), feature.role) != (1, "tokens"):
                raise ValueError(
                    f"model feature {feature.name!r}: role {feature.role!r} does not suit {feature.source!r}, which "
                    "has a fixed length. Read it alone with the role `tokens`."
                )
            dtypes = {self.task_dtype(name) for name in feature.sources}
            if dtypes != {"int32"} and (len(dtypes), feature.role) != (1, "tokens") and feature.role in _VALUE_ROLES:
                raise ValueError(
                    f"model feature {feature.name!r}: role {feature.role!r} does not suit {feature.source!r}, which "
                    "is float32. Read it alone with the role `tokens`."
                )
            if inner := [name for name in feature.sources if name in self.inner_sizes]:
                self._check_inner(feature, f"{inner[0]!r}, which has {self.inner_sizes[inner[0]]} values per item")
            for name in _names(feature.within or ()):
                if name not in read:
                    raise ValueError(
                        f"model feature {feature.name!r}: within={name!r} is not read. Add a model feature that reads "
                        "it."
                    )

    def _check_inner(self, part: ModelFeature, source: str) -> None:
        """Checks that a source with an inner dimension is read alone, without choices and with a suitable role."""
        if any(each.choices for each in self.features if part.sources[0] in each.sources):
            raise UserError(f"choices cannot read {source}. Give an objective that reads one sequence per example.")
        if len(part.sources) > 1 or part.role in _VALUE_ROLES[1:]:
            raise ValueError(
                f"model feature {part.name!r}: role {part.role!r} does not suit {source}. Read it alone with the role "
                "`tokens`."
            )

    @property
    def task_features(self) -> tuple[str, ...]:
        """The task features that are read, in order of first use."""
        return tuple(dict.fromkeys(name for feature in self.features for name in feature.sources))

    @property
    def _parts(self) -> tuple[ModelFeature, ...]:
        return tuple(part for feature in self.features for part in feature.parts)

    @property
    def first_id(self) -> int | None:
        """The BOS that a decoder reads first; None without a decoder, or without BOS."""
        return self.bos_id if any(feature.role == "shifted" for feature in self.features) else None

    @property
    def segment_features(self) -> tuple[str, ...]:
        """The features whose non-zero entries mark the real tokens of a batch, one per source."""
        return tuple(feature.name for feature in self.features if feature.role == "segment_ids")

    @property
    def fixed_lengths(self) -> dict[str, int]:
        """The task features of fixed length -> that length."""
        return {feature.name: feature.length for feature in self.aligned_features if feature.length is not None}

    @property
    def inner_sizes(self) -> dict[str, int]:
        """The task features with an inner dimension -> its size."""
        return {feature.name: feature.inner for feature in self.aligned_features if feature.inner is not None}

    def inner_shape(self, feature: ModelFeature) -> tuple[int, ...]:
        """Returns the dimensions of a model feature after its length: `(inner,)` or `()`."""
        sizes = [self.inner_sizes[name] for name in feature.sources if name in self.inner_sizes]
        return tuple(sizes) if feature.role == "tokens" else ()

    def task_dtype(self, name: str) -> DType:
        """Returns the dtype of a task feature."""
        return next((feature.dtype for feature in self.aligned_features if feature.name == name), "int32")

    @property
    def dtypes(self) -> dict[str, DType]:
        """Model feature or attached array -> dtype."""
        return {
            feature.name: self.task_dtype(feature.sources[0]) if feature.role == "tokens" else "int32"
            for feature in self.features
        } | {attached.name: attached.dtype for attached in self.attached}

    @property
    def axes(self) -> dict[str, tuple[str | None, ...]]:
        """Model feature or attached array -> logical axes of its array."""
        return {
            feature.name: (
                "batch",
                *["choices"] * len(feature.choices),
                "length",
                *[None] * len(self.inner_shape(feature)),
            )
            for feature in self.features
        } | {attached.name: attached.axes for attached in self.attached}

    def is_token_ids(self, name: str) -> bool:
        """Returns whether a task feature is a sequence of token ids: one per item, not aligned, fixed or float32."""
        plain = self.lead(name) == name and not {name} & (self.fixed_lengths.keys() | self.inner_sizes.keys())
        return plain and self.task_dtype(name) == "int32"

    def id_limits(self, ids: Mapping[str, int]) -> dict[str, int]:
        """Returns the limits of token ids.

        Args:
          ids: Task feature -> number of ids of its vocabulary. Features that are missing or have 0 are not limited.

        Returns:
          Model feature that holds token ids, or ids with an inner dimension, -> limit; valid ids are 0 … limit - 1.
        """
        limits = {}
        for feature in self.features:
            known = [ids.get(name) for name in feature.sources]
            inner = self.inner_shape(feature) and self.dtypes[feature.name] == "int32"
            if feature.role in _ID_ROLES and all(known) and (inner or all(map(self.is_token_ids, feature.sources))):
                limits[feature.name] = max(*known, self.bos_id + 1 if feature.role == "shifted" else 0)
        return limits

    @property
    def num_labels(self) -> dict[str, int]:
        """Model feature that holds labels -> number of labels."""
        known = {each.name: each.num_labels for each in self.aligned_features if each.num_labels is not None}
        return {each.name: known[each.sources[0]] for each in self.features if each.sources[0] in known}

    def lead(self, name: str) -> str:
        """Returns the task feature that `name` is aligned with, or `name` itself if it is not aligned."""
        return next(
            (f.aligned_with for f in self.aligned_features if f.name == name and f.aligned_with is not None), name
        )

    def track(self, source: Source) -> tuple[str, ...]:
        """Returns the features that determine the number of items of a source: the leads of its task features."""
        return tuple(self.lead(name) for name in _names(source))

    @property
    def tracks(self) -> tuple[tuple[str, ...], ...]:
        """The distinct tracks that are read, without those of fixed length."""
        tracks = dict.fromkeys(self.track(part.source) for part in self._parts)
        return tuple(track for track in tracks if not set(track) & set(self.fixed_lengths))

    def length_key(self, name: str) -> str:
        """Returns the key of `TASK_FEATURE_LENGTHS` that gives the length of a task feature."""
        lead = self.lead(name)
        return next((f.length_key for f in self.aligned_features if f.name == lead and f.length_key), lead)

    @property
    def length_keys(self) -> tuple[str, ...]:
        """The keys of `TASK_FEATURE_LENGTHS` that the spec needs."""
        names = [name for name in self.task_features if name not in self.fixed_lengths]
        return tuple(dict.fromkeys(map(self.length_key, names)))

    def task_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """Returns the length in tokens of each task feature that is read.

        Args:
          task_feature_lengths: Task feature, or the key that gives its length, -> maximum length in tokens. More
            features than are read may be given.

        Raises:
          UserError: `task_feature_lengths` is not a mapping, or a length is missing or not a positive integer.
        """
        if not isinstance(task_feature_lengths, Mapping):
            raise UserError(
                f"TASK_FEATURE_LENGTHS={task_feature_lengths!r} is not a dictionary. Give a length in tokens per "
                f"feature, such as {dict.fromkeys(self.length_keys, 128)}."
            )
        given, fixed = dict(task_feature_lengths), self.fixed_lengths
        keys = {name: name if name in given else self.length_key(name) for name in self.task_features}
        needed = dict.fromkeys(keys[name] for name in keys if self.lead(name) == name and name not in fixed)
        if missing := [name for name in needed if name not in given]:
            raise UserError(
                f"TASK_FEATURE_LENGTHS={given}: no length for {', '.join(map(repr, missing))}. Give the length of each "
                f"feature that the objective reads: {', '.join(map(repr, needed))}."
            )
        for name in needed:
            if isinstance(given[name], bool) or not isinstance(given[name], int) or given[name] < 1:
                raise UserError(
                    f"TASK_FEATURE_LENGTHS={given}: the length of {name!r} is not a positive integer. Give a number of "
                    "tokens."
                )
        return {name: fixed.get(name) or given[keys[self.lead(name)]] for name in self.task_features}

    def model_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """Returns the length in tokens of each model feature, or of each of its choices.

        Args:
          task_feature_lengths: Key -> maximum length in tokens; see `task_lengths`.

        Raises:
          UserError: as in `task_lengths`, or the choices of a feature have different lengths.
        """
        lengths, found = self.task_lengths(task_feature_lengths), {}
        for feature in self.features:
            of_parts = {sum(lengths[name] for name in part.sources) for part in feature.parts}
            if len(of_parts) > 1:
                raise UserError(
                    f"TASK_FEATURE_LENGTHS={dict(task_feature_lengths)}: the choices of {feature.name!r} have "
                    f"{' and '.join(map(str, sorted(of_parts)))} tokens. Give one length under the key "
                    f"{self.length_key(feature.sources[0])!r}."
                )
            (found[feature.name],) = of_parts
        return found

    def row_shapes(self, task_feature_lengths: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Returns the shape of a row of each model feature, `(*choices, length, *inner)`, and attached array."""
        lengths = self.model_lengths(task_feature_lengths)
        return {
            feature.name: (*feature.choices, lengths[feature.name], *self.inner_shape(feature))
            for feature in self.features
        } | {attached.name: attached.shape for attached in self.attached}

    @property
    def digest(self) -> str:
        """Hash of the spec without its attached arrays, which determines how rows are made from a task's features."""
        rows = f"{dataclasses.replace(self, attached=())!r}{self.inner_sizes or ''}"
        return hashlib.blake2b(rows.encode(), digest_size=8).hexdigest()


def rows_of_shape(shape: tuple[int, ...], axes: tuple[str | None, ...]) -> tuple[int, ...]:
    """Returns the shape `(rows, length)` or `(rows, length, inner)` that a model reads; each choice is a row.

    Args:
      shape: Shape of a model feature.
      axes: Its logical axes; see `FeatureSpec.axes`.
    """
    at = axes.index("length")
    return math.prod(shape[:at]), *shape[at:]


def _names(source: Source) -> tuple[str, ...]:
    return (source,) if isinstance(source, str) else tuple(source)
