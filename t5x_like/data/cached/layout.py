"""What a cached row holds: token ids and how they are divided into examples. Everything else is made on reading.

Shifted tokens, weights, positions and segment ids follow from these, so objectives that read the same task features
from the same rows (`CAUSAL_LM` and `NEXT_TOKEN`, or two BOS ids) share a cache.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.errors import UserError


@dataclasses.dataclass(frozen=True)
class Value:
    """One sequence of numbers in a row.

    Attributes:
      sources: the task features it is made from, joined where they are several.
      within: for places in another source, that source; None for the items themselves.
      track: the position in `Layout.tracks` of what counts its items; None where their number is always `length`.
      length: how many items a row has at most.
    """

    sources: tuple[str, ...]
    within: tuple[str, ...] | None
    track: int | None
    length: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the rows of a cache are made up.

    Attributes:
      values: what a row stores, in order.
      tracks: the task features that are counted together, once for all values along them.
      lengths: task feature -> items at most.
      pack: whether several examples share a row.
    """

    values: tuple[Value, ...]
    tracks: tuple[tuple[str, ...], ...]
    lengths: Mapping[str, int]
    pack: bool

    @classmethod
    def of(cls, spec: FeatureSpec, task_feature_lengths: Mapping[str, int], *, pack: bool) -> "Layout":
        """The layout of rows that an objective with this spec reads.

        Raises:
          UserError: a length is missing, or `pack` although the spec is not packable.
        """
        if pack and not spec.packable:
            raise UserError("PACK=True, but examples of this objective cannot share a row: set PACK to False")
        lengths, tracks = spec.task_lengths(task_feature_lengths), spec.tracks
        values = {}
        for feature in spec.features:
            track = spec.track(feature.source)
            values[value_key(feature)] = Value(
                *value_key(feature),
                track=tracks.index(track) if track in tracks else None,
                length=sum(lengths[name] for name in feature.sources),
            )
        return cls(tuple(values.values()), tracks, lengths, pack)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Layout":
        """The layout that `to_json` described."""
        values = tuple(
            Value(tuple(value["sources"]), value["within"] and tuple(value["within"]), value["track"], value["length"])
            for value in stored["values"]
        )
        return cls(values, tuple(map(tuple, stored["tracks"])), dict(stored["lengths"]), stored["pack"])

    def to_json(self) -> dict[str, Any]:
        """Lists and dictionaries."""
        values = [
            {**dataclasses.asdict(value), "sources": list(value.sources), "within": value.within and list(value.within)}
            for value in self.values
        ]
        return {
            "values": values,
            "tracks": [list(track) for track in self.tracks],
            "lengths": dict(self.lengths),
            "pack": self.pack,
        }

    @property
    def joined(self) -> tuple[int, ...]:
        """The positions in `tracks` of those that join several features."""
        return tuple(index for index, track in enumerate(self.tracks) if len(track) > 1)

    def track_length(self, index: int) -> int:
        """Items of a row in a track, at most."""
        return sum(self.lengths[name] for name in self.tracks[index])

    def storage_spec(self, spec: FeatureSpec) -> FeatureSpec:
        """The spec whose converter makes what a row stores: features `value 0`, …, `segments 0`, … and `last 0`, ….

        `segments t` numbers the examples of track t; `last t` is 1 at the items of its last joined feature.

        Args:
          spec: the objective's, of which this is the layout.
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
        """In what two layouts differ, in words; empty where they do not."""
        found = []
        for name in dict.fromkeys((*self.lengths, *other.lengths)):
            here, there = self.lengths.get(name), other.lengths.get(name)
            if here != there:
                found.append(f"{name!r} has {_items(here)} there, {_items(there)} here")
        if self.pack != other.pack:
            found.append(f"its rows are {_packed(self.pack)}, this run wants them {_packed(other.pack)}")
        if not found and self != other:
            found.append("its features are joined, or run along one another, in another way")
        return found


def value_key(feature: ModelFeature) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """What tells the values apart that model features are made from: sources, and within what they are places."""
    within = feature.within
    return feature.sources, (within,) if isinstance(within, str) else within


def _items(length: int | None) -> str:
    return "no place" if length is None else f"{length} items"


def _packed(pack: bool) -> str:
    return "packed" if pack else "of one example each"
