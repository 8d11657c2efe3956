"""A SeqIO feature converter driven by a `FeatureSpec`: trims, packs or pads examples, and makes the model features.

The converter processes windows of many examples at once, because the cost of tf.data grows with its number of elements.
It has no Python control flow over tensors and is not converted by AutoGraph, which takes seconds at every start.
"""

import functools
from collections.abc import Mapping

import seqio
import tensorflow as tf

from t5x_like.data import prompts
from t5x_like.data.features import FeatureSpec, ModelFeature
from t5x_like.data.roles import FLAT
from t5x_like.data.seqio_feed import (
    devices,  # noqa: F401 (before TensorFlow computes)
    inner_sizes,
    packing,
)
from t5x_like.data.seqio_feed.task_access import NEXT_FIT, Packing
from t5x_like.errors import UserError

PAD_WINDOW = 64


class SpecConverter(seqio.FeatureConverter):
    """Makes the model features of a spec from task features; usable wherever SeqIO takes a feature converter.

    Packing is by default next-fit in the order of the data, like SeqIO's: an example that does not fit into the current
    row in each feature starts the next row. A window has as many examples as the longest feature has tokens; its last
    row may be partly filled. `packing` describes the others. The length of an example is the length of its arrays
    without the vocabulary's padding at the end. Examples that contain only padding are dropped when packing.

    Args:
      spec: Features that the objective reads.
      pack: Whether several examples share a row.
      padding_ids: Task feature -> id that is padding at the end of an example, or None if every id is text, as in
        GPT-2's vocabulary. As in SeqIO, the default is 0.
      data: Name of the data, for messages.
      packing: Which examples share a row; see `seqio_feed.packing`.
      inputs_eos: See `prompts.missing_eos`.

    Raises:
      UserError: `pack` is set but the spec is not packable.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        *,
        pack: bool,
        padding_ids: Mapping[str, int | None] | None = None,
        data: str = "data",
        packing: Packing = NEXT_FIT,
        inputs_eos: int | None = None,
    ):
        if pack and not spec.packable:
            raise UserError("PACK=True: examples of this objective cannot share a row. Set PACK=False.")
        self.spec, self.padding_ids, self.data, self.packing = spec, dict(padding_ids or {}), data, packing
        self.inputs_eos = inputs_eos
        # The parent class checks datasets against these attributes.
        self.TASK_FEATURES = {
            name: self.FeatureSpec(dtype=tf.as_dtype(spec.task_dtype(name)), rank=1 + (name in spec.inner_sizes))
            for name in spec.task_features
        }
        self.MODEL_FEATURES = {
            feature.name: self.FeatureSpec(
                dtype=tf.as_dtype(spec.dtypes[feature.name]), rank=len(spec.axes[feature.name]) - 1
            )
            for feature in spec.features
        }
        self.PACKING_FEATURE_DTYPES = {}
        super().__init__(pack=pack, apply_length_check=False)

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        """Returns the length of each model feature; part of SeqIO's converter interface."""
        return self.spec.model_lengths(task_feature_lengths)

    def __call__(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        """Converts a dataset; SeqIO's interface requires the lengths of exactly the features that are read."""
        return super().__call__(ds, self.spec.task_lengths(task_feature_lengths))

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        return self.convert(ds, task_feature_lengths)

    @tf.autograph.experimental.do_not_convert
    def convert(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        """Converts a dataset that a task has already checked, with fewer passes over it than `__call__`.

        Args:
          ds: Examples with the task features of the spec, `[any length, *inner]`, with the dtypes of the spec.
          task_feature_lengths: Task feature -> maximum length in tokens.

        Returns:
          Dataset of rows with the model features, `[length]`, `[choices, length]` or `[length, inner]` each.

        Raises:
          UserError: the dtype or the inner size of a task feature differs from the spec.
        """
        lengths = self.spec.task_lengths(task_feature_lengths)
        capacities = {track: sum(lengths[name] for name in track) for track in self.spec.tracks}
        _check_elements(ds.element_spec, self.spec)
        ds = inner_sizes.checked(ds, self.spec, self.data)
        inner = self.spec.inner_sizes

        def cast(name, items):
            shape = [None, inner[name]] if name in inner else [None]
            items = tf.ensure_shape(tf.cast(items, self.spec.task_dtype(name)), shape)
            if name != prompts.INPUTS or self.inputs_eos is None:
                return items
            return _with_eos(items, self.inputs_eos, self.padding_ids.get(name, 0), lengths[name])

        ds = ds.map(lambda example: {name: cast(name, example[name]) for name in lengths})
        window = max(capacities.values()) if self.pack else PAD_WINDOW
        if self.pack and self.packing != NEXT_FIT:
            window = packing.WINDOW
        ds = ds.ragged_batch(window, row_splits_dtype=tf.int32)

        def model_features(batch):
            rows, sizes = _dense(batch)
            rows, counts = trim(rows, sizes, lengths, self.spec, self.padding_ids)
            if self.pack:
                rows, counts = _nonempty(rows, counts)
                totals = {t: _total(counts, t) for t in capacities}
                placement = packing.pack(self.packing, totals, capacities, window)
                rows, counts = placement.arranged(rows), placement.arranged(counts)
            else:
                placement = packing.one_per_row(tf.shape(next(iter(rows.values())))[0])
            tracks = {t: Track([counts[name] for name in t], placement, length) for t, length in capacities.items()}

            def make(feature):
                return self._model_feature(feature, rows, tracks, lengths)

            return {f.name: f.stack(make, lambda choices: tf.stack(choices, axis=1)) for f in self.spec.features}

        return ds.map(model_features, num_parallel_calls=tf.data.AUTOTUNE).unbatch()

    def _model_feature(
        self,
        feature: ModelFeature,
        rows: Mapping[str, tf.Tensor],
        tracks: Mapping[tuple[str, ...], "Track"],
        lengths: Mapping[str, int],
    ) -> tf.Tensor:
        """Returns the rows of one part of a model feature, `[rows, length]` or `[rows, length, inner]`."""
        if set(feature.sources) & set(self.spec.fixed_lengths):
            (name,) = feature.sources
            return tf.ensure_shape(rows[name], [None, lengths[name]])
        track = tracks[self.spec.track(feature.source)]
        tokens = track.flat([rows[name] for name in feature.sources])
        if feature.within is not None:
            tokens += tf.repeat(tracks[self.spec.track(feature.within)].offsets, track.counts)
        return track.dense(FLAT[feature.role](tokens, track, self.spec.bos_id))


# ---- arrangement of tokens in rows -----------------------------------------------------------------------------------


class Track:
    """The concatenated tokens of a window's examples (flat, `[tokens]`), and their arrangement in rows.

    Args:
      part_counts: For each of the joined features, the number of tokens of each example, `[examples]`.
      placement: Placement of the examples in rows.
      length: Length of a row.

    Attributes:
      counts: Number of tokens of each example, `[examples]`.
      before: Number of tokens of each example before the last of the joined features, `[examples]`.
    """

    def __init__(self, part_counts: list[tf.Tensor], placement: packing.Placement, length: int):
        self.counts = tf.add_n(part_counts)
        self.before = self.counts - part_counts[-1]
        self._part_counts, self._placement, self._length = part_counts, placement, length
        self._row_lengths = tf.math.unsorted_segment_sum(self.counts, placement.row, placement.number_of_rows)
        self._starts = tf.cumsum(self.counts, exclusive=True)

    @functools.cached_property
    def offsets(self) -> tf.Tensor:
        """Start position of each example in its row, `[examples]`."""
        return self._starts - tf.gather(tf.cumsum(self._row_lengths, exclusive=True), self._placement.row)

    @functools.cached_property
    def positions(self) -> tf.Tensor:
        """Position of each token in its example, flat."""
        return tf.range(tf.reduce_sum(self.counts)) - tf.repeat(self._starts, self.counts)

    @functools.cached_property
    def left(self) -> tf.Tensor:
        """Number of tokens of the same example after each token, flat."""
        return tf.repeat(self.counts, self.counts) - self.positions - 1

    @functools.cached_property
    def segments(self) -> tf.Tensor:
        """Segment of each token in its row, flat."""
        return tf.repeat(self._placement.segment, self.counts)

    @functools.cached_property
    def last(self) -> tf.Tensor:
        """Position in its example at which the last joined feature begins, for each token, flat."""
        return tf.repeat(self.before, self.counts)

    def select(self, condition: tf.Tensor, tokens: tf.Tensor, other: int) -> tf.Tensor:
        """Returns the tokens where a condition holds, and another value elsewhere."""
        return tf.where(condition, tokens, other)

    def roll(self, tokens: tf.Tensor, shift: int) -> tf.Tensor:
        """Moves tokens by a number of positions."""
        return tf.roll(tokens, shift, 0)

    def flat(self, parts: list[tf.Tensor]) -> tf.Tensor:
        """Flattens the items of the joined features, each `[examples, any length]`, or of one `[…, inner]`."""
        real = [tf.sequence_mask(n, tf.shape(p)[1]) for n, p in zip(self._part_counts, parts, strict=True)]
        if len(parts) == 1:
            return tf.boolean_mask(parts[0], real[0])
        return tf.boolean_mask(tf.concat(parts, axis=1), tf.concat(real, axis=1))

    def dense(self, flat: tf.Tensor) -> tf.Tensor:
        """Arranges flat values in rows, `[rows, length, …]`, with 0 after the last example; True becomes 1."""
        flat = tf.cast(flat, tf.int32) if flat.dtype == tf.bool else flat
        return tf.RaggedTensor.from_row_lengths(flat, self._row_lengths, validate=False).to_tensor(
            shape=[None, self._length, *flat.shape[1:]]
        )


# ---- token counts and row starts -------------------------------------------------------------------------------------


def _check_elements(element_spec: Mapping[str, tf.TensorSpec], spec: FeatureSpec) -> None:
    """Checks the dtypes of a task's features, and the lengths of those with a fixed length."""
    for name, length in spec.fixed_lengths.items():
        found = element_spec[name].shape[0]
        if found not in (None, length):
            raise UserError(
                f"task feature {name!r}: {found} values per example, but the objective reads {length}. Change the "
                "objective, for scores its LABELS, or the task."
            )
    for name in spec.task_features:
        found, wanted = element_spec[name].dtype, tf.as_dtype(spec.task_dtype(name))
        if found.is_floating != wanted.is_floating or not (found.is_floating or found.is_integer):
            raise UserError(
                f"task feature {name!r}: its values are {found.name}, but the objective reads {wanted.name}. Give "
                "the objective of such a task, such as runs/finetune_classification.gin for labels and "
                "runs/finetune_regression.gin for scores, or change the task's preprocessor."
            )


def _dense(batch: Mapping[str, tf.Tensor | tf.RaggedTensor]):
    """Returns the features as `[examples, longest, …]`, padded with 0, and the length of each example, `[examples]`."""
    rows, sizes = {}, {}
    for name, examples in batch.items():
        if isinstance(examples, tf.RaggedTensor):
            rows[name], sizes[name] = examples.to_tensor(), examples.row_lengths()
        else:  # all examples have the same static length
            rows[name], sizes[name] = examples, tf.fill([tf.shape(examples)[0]], tf.shape(examples)[1])
    return rows, sizes


def _with_eos(items: tf.Tensor, eos_id: int, padding_id: int | None, length: int) -> tf.Tensor:
    """Returns the token ids `[any length]` of an example without padding and with one EOS, at most `length`."""
    if padding_id is not None:
        items = items[: _count(items[tf.newaxis], tf.shape(items), padding_id)[0]]
    has_eos = tf.equal(items[-1:], eos_id)  # shape `[1]`, or `[0]` of an empty example
    items = items[: tf.shape(items)[0] - tf.reduce_sum(tf.cast(has_eos, tf.int32))]
    return tf.concat([items[: length - 1], [eos_id]], axis=0)


def trim(
    rows: Mapping[str, tf.Tensor],
    sizes: Mapping[str, tf.Tensor],
    lengths: Mapping[str, int],
    spec: FeatureSpec,
    padding_ids: Mapping[str, int | None],
):
    """Trims rows to their lengths, and counts the items of each example.

    With padding, aligned features are counted together: up to the last item that is not padding in any of them.
    Positions within another feature are dropped if they are beyond the length to which it was trimmed.

    Args:
      rows: Task feature -> `[examples, any length]` or `[examples, any length, inner]`.
      sizes: Task feature -> length of each example, including padding, `[examples]`.
      lengths: Task feature -> maximum length.
      spec: Spec that declares which features are aligned.
      padding_ids: Task feature -> id of padding, or None for no padding; the default is 0.

    Returns:
      Task feature -> rows `[examples, length]`, padded to `length` only for features that are aligned or fixed; and
      lead -> number of items of each example, `[examples]`.
    """
    padded = {spec.lead(name) for name in lengths if spec.lead(name) != name} | set(spec.fixed_lengths)
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
        if lead in padded:
            after = [[0, lengths[name] - tf.shape(tokens)[1]], *[[0, 0]] * (tokens.shape.rank - 2)]
            trimmed[name] = tf.pad(tokens, [[0, 0], *after])
    for feature in spec.features:
        if feature.within is not None:
            (name,), within = feature.sources, _total(counts, spec.track(feature.within))
            count = counts[spec.lead(name)]
            inside = (trimmed[name] < within[:, tf.newaxis]) & tf.sequence_mask(count, tf.shape(trimmed[name])[1])
            counts[spec.lead(name)] = tf.reduce_sum(tf.cast(inside, tf.int32), axis=1)
    return trimmed, {name: count for name, count in counts.items() if name not in spec.fixed_lengths}


def _count(tokens: tf.Tensor, sizes: tf.Tensor, padding_id: int) -> tf.Tensor:
    """Counts the items in each row of `[examples, length, …]` up to the last one that is not padding."""
    real = tokens != tf.cast(padding_id, tokens.dtype)
    real = (tf.reduce_any(real, axis=2) if real.shape.rank > 2 else real) & tf.sequence_mask(sizes, tf.shape(tokens)[1])
    ends = tf.cast(real, tf.int32) * tf.range(1, tf.shape(tokens)[1] + 1)
    # reduce_max of an array without columns is the smallest integer.
    return tf.maximum(tf.reduce_max(ends, axis=1), 0)


def _total(counts: Mapping[str, tf.Tensor], track: tuple[str, ...]) -> tf.Tensor:
    return tf.add_n([counts[name] for name in track])


def _nonempty(rows: Mapping[str, tf.Tensor], counts: Mapping[str, tf.Tensor]):
    """Keeps the rows that have a token in any feature."""
    kept = tf.add_n(list(counts.values())) > 0
    return (
        {name: tf.boolean_mask(tokens, kept) for name, tokens in rows.items()},
        {name: tf.boolean_mask(count, kept) for name, count in counts.items()},
    )
