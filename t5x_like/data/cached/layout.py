"""The layout of cached rows: token ids and their division into examples.

Shifted tokens, weights, positions and segment ids are computed on reading. Objectives that read the same task features
from the same rows (`CAUSAL_LM` and `NEXT_TOKEN`, or two BOS ids) therefore share a cache.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Value:
    """A sequence of numbers in a row.

    Attributes:
      sources: Task features that it is made from, joined in this order.
      within: For positions in another source, that source; otherwise None.
      track: Index in `Layout.tracks` of the track that counts its items; None if their number is always `length`.
      length: Maximum number of items per row.
      inner: Number of values per item; None for one without a dimension of its own.
    """

    sources: tuple[str, ...]
    within: tuple[str, ...] | None
    track: int | None
    length: int
    inner: int | None = None

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """The dimension of the values of an item: `(inner,)` or `()`."""
        return () if self.inner is None else (self.inner,)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of the rows of a cache.

    Attributes:
      values: The values that a row stores, in order.
      tracks: The tracks of the spec: task features that are counted together, once for all values aligned with them.
      lengths: Task feature -> maximum number of items.
      pack: Whether several examples share a row.
    """

    values: tuple[Value, ...]
    tracks: tuple[tuple[str, ...], ...]
    lengths: Mapping[str, int]
    pack: bool

    @classmethod
    def of(cls, spec: FeatureSpec, task_feature_lengths: Mapping[str, int], *, pack: bool) -> "Layout":
        """Returns the layout of the rows that an objective with this spec reads.

        Raises:
          UserError: a length is missing, or `pack` is set but the spec is not packable.
        """
        if pack and not spec.packable:
            raise UserError("PACK=True: examples of this objective cannot share a row. Set PACK=False.")
        lengths, tracks = spec.task_lengths(task_feature_lengths), spec.tracks
        values = {}
        for part in [part for feature in spec.features for part in feature.parts]:
            track = spec.track(part.source)
            values[value_key(part)] = Value(
                *value_key(part),
                track=tracks.index(track) if track in tracks else None,
                length=sum(lengths[name] for name in part.sources),
                inner=spec.inner_sizes.get(part.sources[0]),
            )
        return cls(tuple(values.values()), tracks, lengths, pack)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Layout":
        """Returns the layout that `to_json` converted."""
        values = tuple(
            Value(**value | {"sources": tuple(value["sources"]), "within": value["within"] and tuple(value["within"])})
            for value in stored["values"]
        )
        return cls(values, tuple(map(tuple, stored["tracks"])), dict(stored["lengths"]), stored["pack"])

    def to_json(self) -> dict[str, Any]:
        """Converts the layout to lists and dictionaries."""
        values = [
            {**dataclasses.asdict(value), "sources": list(value.sources), "within": value.within and list(value.within)}
            for value in self.values
        ]
        for value in values:
            if value["inner"] is None:
                del value["inner"]  # as in the manifests of earlier versions
        return {
            "values": values,
            "tracks": [list(track) for track in self.tracks],
            "lengths": dict(self.lengths),
            "pack": self.pack,
        }

    @property
    def joined(self) -> tuple[int, ...]:
        """Indices in `tracks` of the tracks that join several features."""
        return tuple(index for index, track in enumerate(self.tracks) if len(track) > 1)

    def track_length(self, index: int) -> int:
        """Returns the maximum number of items per row in a track."""
        return sum(self.lengths[name] for name in self.tracks[index])

    def storage_spec(self, spec: FeatureSpec) -> FeatureSpec:
        """Returns the spec whose converter makes the stored values of a row.

        Its features are `value 0`, …, `segments 0`, … and `last 0`, …. `segments t` numbers the examples of track t;
        `last t` is 1 at the items of its last joined feature.

        Args:
          spec: Spec of the objective, of which this is the layout.
        """
        values = tuple(
            ModelFeature(f"value {index}", value.sources, "row_positions" if value.within else "tokens", value.within)
            for index, value in enumerate(self.values)
        )
        segments = tuple(
            ModelFeature(f"segments {index}", track, "segment_ids") for index, track in enumerate(self.tracks)
        )
        last = tuple(ModelFeature(f"last {index}", self.tracks[index], "last_weights") for index in self.joined)
        return dataclasses.replace(spec, features=values + segments + last)

    def differences(self, other: "Layout") -> list[str]:
        """Describes the differences between two layouts; empty if they are equal."""
        found = []
        for name in dict.fromkeys((*self.lengths, *other.lengths)):
            here, there = self.lengths.get(name), other.lengths.get(name)
            if here != there:
                found.append(f"{name!r} has {_items(here)} in the cache, {_items(there)} in this run")
        sizes, others = ({value.sources[0]: value.inner for value in each.values} for each in (self, other))
        for name in sizes.keys() & others.keys():
            if (here := sizes[name]) != (there := others[name]):
                found.append(f"{name!r} has {here or 'one'} values per item in the cache, {there or 'one'} in this run")
        if self.pack != other.pack:
            found.append(f"rows are {_packed(self.pack)} in the cache, {_packed(other.pack)} in this run")
        if not found and self != other:
            found.append("features are joined or aligned differently")
        return found


def value_key(feature: ModelFeature) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Returns the key of the stored value of a model feature (or of one of its choices): its sources and `within`."""
    within = feature.within
    return feature.sources, (within,) if isinstance(within, str) else within


def _items(length: int | None) -> str:
    return "no value" if length is None else f"{length} items"


def _packed(pack: bool) -> str:
    return "packed" if pack else "not packed"
