"""A SeqIO feature converter driven by a `FeatureSpec`: trims, packs or pads, and makes the model's features.

It works on windows of many examples at once, since the cost of tf.data follows the number of its elements.
"""

from collections.abc import Mapping

import seqio
import tensorflow as tf

from t5x_like.data.features import BOS_ID, FeatureSpec

PAD_WINDOW = 32


class SpecConverter(seqio.FeatureConverter):
    """Makes the features of a spec from a task's; usable wherever SeqIO takes a converter.

    Packing is next fit in the order of the data, as SeqIO's: an example that does not fit into the current row in every
    feature begins the next one, and a window of as many examples as the longest feature has tokens ends with a row that
    may be part full. Zeros at the end of an example are padding; an example of padding alone has no part in packing.
    """

    def __init__(self, spec: FeatureSpec, *, pack: bool):
        """Args:
          spec: what the objective reads.
          pack: whether examples share rows.

        Raises:
          ValueError: `pack` although the spec is not packable.
        """
        if pack and not spec.packable:
            raise ValueError("pack=True, but examples of this objective cannot share a row: set pack=False")
        self.spec = spec
        # What the parent class checks datasets against.
        self.TASK_FEATURES = {name: self.FeatureSpec(dtype=tf.int32) for name in spec.task_features}
        self.MODEL_FEATURES = {feature.name: self.FeatureSpec(dtype=tf.int32) for feature in spec.features}
        self.PACKING_FEATURE_DTYPES = {}
        super().__init__(pack=pack, apply_length_check=False)

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> dict[str, int]:
        return self.spec.model_lengths(task_feature_lengths)

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        return self.convert(ds, task_feature_lengths)

    def convert(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        """What calling the converter does, for a dataset that a task has already checked: fewer passes over it.

        Args:
          ds: examples with the task features of the spec, int32 `[any length]`.
          task_feature_lengths: tokens of each.

        Returns:
          The model's features, int32 `[length]`.
        """
        lengths = dict(task_feature_lengths)
        ds = ds.map(lambda example: {name: example[name] for name in lengths})
        window = max(lengths.values()) if self.pack else PAD_WINDOW
        ds = ds.padded_batch(window, padded_shapes={name: [None] for name in lengths})
        arrange = pack if self.pack else pad
        ds = ds.map(
            lambda rows: self._model_features(arrange(rows, lengths, window)), num_parallel_calls=tf.data.AUTOTUNE
        )
        return ds.unbatch()

    def _model_features(self, arranged: Mapping[str, "Arranged"]) -> dict[str, tf.Tensor]:
        return {feature.name: _ROLES[feature.role](*arranged[feature.source]) for feature in self.spec.features}


Arranged = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
"""Tokens, segment ids and positions, each int32 `[rows, length]`, 0 for padding."""


def pad(rows: Mapping[str, tf.Tensor], lengths: Mapping[str, int], window: int) -> dict[str, Arranged]:
    """One example a row.

    Args:
      rows: feature -> `[examples, any length]`, 0 at the end.
      lengths: feature -> the length to trim or pad to.
      window: unused; packing needs it.
    """
    del window
    rows, counts = _trim(rows, lengths)
    arranged = {}
    for name, length in lengths.items():
        tokens = tf.pad(rows[name], [[0, 0], [0, length - tf.shape(rows[name])[1]]])
        tokens = tf.ensure_shape(tokens, [None, length])
        real = tf.sequence_mask(counts[name], length, dtype=tf.int32)
        arranged[name] = (tokens, real, tf.range(length) * real)
    return arranged


def pack(rows: Mapping[str, tf.Tensor], lengths: Mapping[str, int], window: int) -> dict[str, Arranged]:
    """Several examples a row, next fit.

    Args:
      rows: feature -> `[examples, any length]`, 0 at the end.
      lengths: feature -> length of a row.
      window: how many examples there are at most.
    """
    rows, counts = _nonempty(*_trim(rows, lengths))
    begins = _row_begins([counts[name] for name in lengths], list(lengths.values()), window)
    row = tf.cumsum(tf.cast(begins, tf.int32)) - 1
    number_of_rows = tf.reduce_sum(tf.cast(begins, tf.int32))
    first = tf.cast(tf.squeeze(tf.where(begins), 1), tf.int32)
    segment = tf.range(tf.size(row)) - tf.gather(first, row) + 1
    arranged = {}
    for name, length in lengths.items():
        count = counts[name]
        row_lengths = tf.math.unsorted_segment_sum(count, row, number_of_rows)
        tokens = tf.boolean_mask(rows[name], tf.sequence_mask(count, tf.shape(rows[name])[1]))
        positions = tf.range(tf.size(tokens)) - tf.repeat(tf.cumsum(count, exclusive=True), count)
        arranged[name] = tuple(
            tf.RaggedTensor.from_row_lengths(flat, row_lengths, validate=False).to_tensor(shape=[None, length])
            for flat in (tokens, tf.repeat(segment, count), positions)
        )
    return arranged


def _trim(rows: Mapping[str, tf.Tensor], lengths: Mapping[str, int]):
    """Rows trimmed to their lengths, and how many tokens each has."""
    trimmed = {name: rows[name][:, :length] for name, length in lengths.items()}
    counts = {
        name: tf.reduce_max(
            tf.cast(tokens != 0, tf.int32) * tf.range(1, tf.shape(tokens)[1] + 1), axis=1, keepdims=True
        )
        for name, tokens in trimmed.items()
    }
    # An array without columns has no largest element: reduce_max gives the least integer.
    return trimmed, {name: tf.maximum(tf.squeeze(count, 1), 0) for name, count in counts.items()}


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


def _shifted(tokens: tf.Tensor, segments: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """The tokens one place to the right within their segments."""
    previous = tf.pad(tokens, [[0, 0], [1, 0]], constant_values=BOS_ID)[:, :-1]
    return tf.where((segments > 0) & (positions > 0), previous, BOS_ID)


_ROLES = {
    "tokens": lambda tokens, segments, positions: tokens,
    "shifted": _shifted,
    "weights": lambda tokens, segments, positions: tf.cast(segments > 0, tf.int32),
    "segment_ids": lambda tokens, segments, positions: segments,
    "positions": lambda tokens, segments, positions: positions,
}
