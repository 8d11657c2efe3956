"""A SeqIO feature converter driven by a `FeatureSpec`: trims, packs or pads, and makes the model's features.

It works on windows of many examples at once, since the cost of tf.data follows the number of its elements.
"""

import dataclasses
import functools
from collections.abc import Mapping

import seqio
import tensorflow as tf

from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.seqio_feed import devices  # noqa: F401 (before TensorFlow computes)
from t5x_like.errors import UserError

PAD_WINDOW = 64


class SpecConverter(seqio.FeatureConverter):
    """Makes the features of a spec from a task's; usable wherever SeqIO takes a converter.

    Packing is next fit in the order of the data, as SeqIO's: an example that does not fit into the current row in every
    feature begins the next one, and a window of as many examples as the longest feature has tokens ends with a row that
    may be part full. An example is as long as its arrays, less its vocabulary's padding at their end; an example of
    padding alone has no part in packing.
    """

    def __init__(self, spec: FeatureSpec, *, pack: bool, padding_ids: Mapping[str, int | None] | None = None):
        """Args:
          spec: what the objective reads.
          pack: whether examples share rows.
          padding_ids: task feature -> the id that is padding at the end of an example; None where every id is text, as
            in GPT-2's vocabulary. 0 for features that are not named, as SeqIO has it.

        Raises:
          UserError: `pack` although the spec is not packable.
        """
        if pack and not spec.packable:
            raise UserError("pack=True, but examples of this objective cannot share a row: set pack=False")
        self.spec, self.padding_ids = spec, dict(padding_ids or {})
        # What the parent class checks datasets against.
        self.TASK_FEATURES = {
            name: self.FeatureSpec(dtype=tf.as_dtype(spec.task_dtype(name))) for name in spec.task_features
        }
        self.MODEL_FEATURES = {name: self.FeatureSpec(dtype=tf.as_dtype(dtype)) for name, dtype in spec.dtypes.items()}
        self.PACKING_FEATURE_DTYPES = {}
        super().__init__(pack=pack, apply_length_check=False)

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        return self.spec.model_lengths(task_feature_lengths)

    def __call__(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        """As every converter of SeqIO, which wants the length of each feature and of no other."""
        return super().__call__(ds, self.spec.task_lengths(task_feature_lengths))

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        return self.convert(ds, task_feature_lengths)

    def convert(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        """What calling the converter does, for a dataset that a task has already checked: fewer passes over it.

        Args:
          ds: examples with the task features of the spec, `[any length]` of their dtypes.
          task_feature_lengths: tokens of each.

        Returns:
          The model's features, `[length]` of their dtypes.

        Raises:
          UserError: a task feature has another dtype than the spec says.
        """
        lengths = self.spec.task_lengths(task_feature_lengths)
        capacities = {track: sum(lengths[name] for name in track) for track in self.spec.tracks}
        _check_dtypes(ds.element_spec, self.spec)
        ds = ds.map(
            lambda example: {
                name: tf.ensure_shape(tf.cast(example[name], self.spec.task_dtype(name)), [None]) for name in lengths
            }
        )
        window = max(capacities.values()) if self.pack else PAD_WINDOW
        ds = ds.ragged_batch(window, row_splits_dtype=tf.int32)

        def model_features(batch):
            rows, sizes = _dense(batch)
            rows, counts = trim(rows, sizes, lengths, self.spec, self.padding_ids)
            if self.pack:
                rows, counts = _nonempty(rows, counts)
                where = pack({t: _total(counts, t) for t in capacities}, capacities, window)
            else:
                where = one_per_row(tf.shape(next(iter(rows.values())))[0])
            tracks = {t: Track([counts[name] for name in t], where, length) for t, length in capacities.items()}
            return {f.name: self._model_feature(f, rows, tracks, lengths) for f in self.spec.features}

        return ds.map(model_features, num_parallel_calls=tf.data.AUTOTUNE).unbatch()

    def _model_feature(
        self,
        feature: ModelFeature,
        rows: Mapping[str, tf.Tensor],
        tracks: Mapping[tuple[str, ...], "Track"],
        lengths: Mapping[str, int],
    ) -> tf.Tensor:
        """The rows of one model feature, `[rows, length]` of its dtype."""
        if set(feature.sources) & set(self.spec.fixed_lengths):
            (name,) = feature.sources
            return tf.ensure_shape(rows[name], [None, lengths[name]])
        track = tracks[self.spec.track(feature.source)]
        tokens = track.flat([rows[name] for name in feature.sources])
        if feature.within is not None:
            tokens += tf.repeat(tracks[self.spec.track(feature.within)].offsets, track.counts)
        return track.dense(_ROLES[feature.role](tokens, track, self.spec.bos_id))


# ---- where examples lie ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Placement:
    """Which example of a window lies where.

    Attributes:
      row: the row of each example, int32 `[examples]`, ascending.
      segment: its number in its row, from 1 on, int32 `[examples]`.
      number_of_rows: scalar int32.
    """

    row: tf.Tensor
    segment: tf.Tensor
    number_of_rows: tf.Tensor


def one_per_row(examples: tf.Tensor) -> Placement:
    """Every example in a row of its own."""
    return Placement(tf.range(examples), tf.ones([examples], tf.int32), examples)


def pack(counts: Mapping[object, tf.Tensor], capacities: Mapping[object, int], window: int) -> Placement:
    """Several examples a row, next fit.

    Args:
      counts: tokens of each example in each track, `[examples]`.
      capacities: tokens of a row in each track.
      window: how many examples there are at most.
    """
    begins = _row_begins(list(counts.values()), [capacities[track] for track in counts], window)
    row = tf.cumsum(tf.cast(begins, tf.int32)) - 1
    first = tf.cast(tf.squeeze(tf.where(begins), 1), tf.int32)
    segment = tf.range(tf.size(row)) - tf.gather(first, row) + 1
    return Placement(row, segment, tf.size(first))


class Track:
    """The tokens of a window's examples one after the other (`[tokens]`, flat), and how they become rows.

    Attributes:
      counts: tokens of each example, `[examples]`.
      before: how many of them come before the last of the joined features, `[examples]`.
    """

    def __init__(self, part_counts: list[tf.Tensor], where: Placement, length: int):
        """Args:
        part_counts: tokens of each example in each of the joined features, `[examples]`.
        where: which example lies where.
        length: of a row.
        """
        self.counts = tf.add_n(part_counts)
        self.before = self.counts - part_counts[-1]
        self._part_counts, self._where, self._length = part_counts, where, length
        self._row_lengths = tf.math.unsorted_segment_sum(self.counts, where.row, where.number_of_rows)
        self._starts = tf.cumsum(self.counts, exclusive=True)

    @functools.cached_property
    def offsets(self) -> tf.Tensor:
        """Where each example begins in its row, `[examples]`."""
        return self._starts - tf.gather(tf.cumsum(self._row_lengths, exclusive=True), self._where.row)

    @functools.cached_property
    def positions(self) -> tf.Tensor:
        """Each token's place in its example, flat."""
        return tf.range(tf.reduce_sum(self.counts)) - tf.repeat(self._starts, self.counts)

    @functools.cached_property
    def left(self) -> tf.Tensor:
        """How many tokens of the same example follow each token, flat."""
        return tf.repeat(self.counts, self.counts) - self.positions - 1

    @functools.cached_property
    def segments(self) -> tf.Tensor:
        """Each token's segment in its row, flat."""
        return tf.repeat(self._where.segment, self.counts)

    def flat(self, parts: list[tf.Tensor]) -> tf.Tensor:
        """The tokens of the joined features, each `[examples, any length]`, flat."""
        real = [tf.sequence_mask(n, tf.shape(p)[1]) for n, p in zip(self._part_counts, parts, strict=True)]
        if len(parts) == 1:
            return tf.boolean_mask(parts[0], real[0])
        return tf.boolean_mask(tf.concat(parts, axis=1), tf.concat(real, axis=1))

    def dense(self, flat: tf.Tensor) -> tf.Tensor:
        """Flat values as rows, `[rows, length]`, 0 behind the last example."""
        return tf.RaggedTensor.from_row_lengths(flat, self._row_lengths, validate=False).to_tensor(
            shape=[None, self._length]
        )


# Of flat tokens, their track and BOS; flat too.
_ROLES = {
    "tokens": lambda tokens, track, bos: tokens,
    "shifted": lambda tokens, track, bos: tf.where(track.positions > 0, tf.roll(tokens, 1, 0), bos),
    "next": lambda tokens, track, bos: tf.where(track.left > 0, tf.roll(tokens, -1, 0), 0),
    "weights": lambda tokens, track, bos: tf.ones_like(tokens),
    "next_weights": lambda tokens, track, bos: tf.cast(track.left > 0, tf.int32),
    "last_weights": lambda tokens, track, bos: tf.cast(
        track.positions >= tf.repeat(track.before, track.counts), tf.int32
    ),
    "prefix": lambda tokens, track, bos: tf.cast(track.positions <= tf.repeat(track.before, track.counts), tf.int32),
    "segment_ids": lambda tokens, track, bos: track.segments,
    "positions": lambda tokens, track, bos: track.positions,
    "row_positions": lambda tokens, track, bos: tokens,
}


# ---- how many tokens there are, and which fit into a row -----------------------------------------------------------


def _check_dtypes(element_spec: Mapping[str, tf.TensorSpec], spec: FeatureSpec) -> None:
    for name in spec.task_features:
        found, wanted = element_spec[name].dtype, tf.as_dtype(spec.task_dtype(name))
        if found.is_floating != wanted.is_floating or not (found.is_floating or found.is_integer):
            raise UserError(
                f"task feature {name!r}: its values are {found.name}, but the objective reads {wanted.name}. Change "
                "the task's preprocessor, or the feature's TaskFeature(…, dtype=…) in the objective's FeatureSpec"
            )


def _dense(batch: Mapping[str, tf.Tensor | tf.RaggedTensor]):
    """Features as `[examples, longest]`, 0 behind their ends, and the length of each example, `[examples]`."""
    rows, sizes = {}, {}
    for name, examples in batch.items():
        if isinstance(examples, tf.RaggedTensor):
            rows[name], sizes[name] = examples.to_tensor(), examples.row_lengths()
        else:  # of one static length
            rows[name], sizes[name] = examples, tf.fill([tf.shape(examples)[0]], tf.shape(examples)[1])
    return rows, sizes


def trim(
    rows: Mapping[str, tf.Tensor],
    sizes: Mapping[str, tf.Tensor],
    lengths: Mapping[str, int],
    spec: FeatureSpec,
    padding_ids: Mapping[str, int | None],
):
    """Rows trimmed to their lengths, and how many items each example has in every feature that others may run along.

    Where there is padding, features that run along one another are counted together, by the last item of any of them
    that is not padding. Positions within a feature go no further than it was trimmed to.

    Args:
      rows: task feature -> `[examples, any length]`.
      sizes: task feature -> how long each example is, padding included, `[examples]`.
      lengths: task feature -> items at most.
      spec: what runs along what.
      padding_ids: task feature -> the id of padding, None for no padding; 0 for features that are not named.

    Returns:
      Task feature -> `[examples, length]`, features without company not padded; leading feature -> `[examples]`.
    """
    company = {spec.lead(name) for name in lengths if spec.lead(name) != name} | set(spec.fixed_lengths)
    trimmed = {name: rows[name][:, :length] for name, length in lengths.items()}
    counts: dict[str, tf.Tensor] = {}
    for name, tokens in trimmed.items():
        size, lead = tf.minimum(sizes[name], lengths[name]), spec.lead(name)
        has_padding = spec.task_dtype(lead) == "int32" and padding_ids.get(lead, 0) is not None
        if has_padding:
            count = _count(tokens, size, padding_ids.get(name, 0) if name == lead else 0)
            counts[lead] = tf.maximum(counts[lead], count) if lead in counts else count
        elif name == lead:
            counts[lead] = size
        if lead in company:
            trimmed[name] = tf.pad(tokens, [[0, 0], [0, lengths[name] - tf.shape(tokens)[1]]])
    for feature in spec.features:
        if feature.within is not None:
            (name,), within = feature.sources, _total(counts, spec.track(feature.within))
            count = counts[spec.lead(name)]
            inside = (trimmed[name] < within[:, tf.newaxis]) & tf.sequence_mask(count, tf.shape(trimmed[name])[1])
            counts[spec.lead(name)] = tf.reduce_sum(tf.cast(inside, tf.int32), axis=1)
    return trimmed, {name: count for name, count in counts.items() if name not in spec.fixed_lengths}


def _count(tokens: tf.Tensor, sizes: tf.Tensor, padding_id: int) -> tf.Tensor:
    """How many tokens there are in each row of `[examples, length]` up to the last one that is not padding."""
    real = (tokens != tf.cast(padding_id, tokens.dtype)) & tf.sequence_mask(sizes, tf.shape(tokens)[1])
    places = tf.cast(real, tf.int32) * tf.range(1, tf.shape(tokens)[1] + 1)
    # An array without columns has no largest element: reduce_max gives the least integer.
    return tf.maximum(tf.reduce_max(places, axis=1), 0)


def _total(counts: Mapping[str, tf.Tensor], track: tuple[str, ...]) -> tf.Tensor:
    return tf.add_n([counts[name] for name in track])


def _nonempty(rows: Mapping[str, tf.Tensor], counts: Mapping[str, tf.Tensor]):
    """The rows that have a token in any feature."""
    kept = tf.add_n(list(counts.values())) > 0
    return (
        {name: tf.boolean_mask(tokens, kept) for name, tokens in rows.items()},
        {name: tf.boolean_mask(count, kept) for name, count in counts.items()},
    )


def _row_begins(counts: list[tf.Tensor], capacities: list[int], window: int) -> tf.Tensor:
    """Which examples begin a row, bool `[examples]`.

    From each example the first one that no longer fits into its row is found by binary search in running sums; the
    examples that begin a row are those reached from the first one by such jumps, found by doubling them.
    """
    size = tf.size(counts[0])
    following = tf.fill([size], size)
    for count, capacity in zip(counts, capacities, strict=True):
        ends = tf.concat([[0], tf.cumsum(count)], axis=0)
        fits = tf.searchsorted(ends, ends[:-1] + capacity, side="right") - 1
        following = tf.minimum(following, fits)
    jump = tf.concat([following, [size]], axis=0)
    reached = tf.cast(tf.range(size + 1) == 0, tf.int32)
    for _ in range(window.bit_length()):
        reached = tf.maximum(reached, tf.math.unsorted_segment_max(reached, jump, size + 1))
        jump = tf.gather(jump, jump)
    return reached[:-1] > 0
