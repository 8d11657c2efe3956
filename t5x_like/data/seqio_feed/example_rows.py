"""Rows of the examples of a task: packed or padded examples, or windows of documents in continuous data."""

import tensorflow as tf

from t5x_like.data import prompts
from t5x_like.data.features import FeatureSpec
from t5x_like.data.seqio_feed import continuous, inner_sizes
from t5x_like.data.seqio_feed.converter import SpecConverter
from t5x_like.data.seqio_feed.task_access import TaskAccess


def make(
    source: TaskAccess,
    examples: tf.data.Dataset,
    spec: FeatureSpec,
    *,
    batch_size: int,
    rows: range | None = None,
    to_the_end: bool = False,
    converted: FeatureSpec | None = None,
) -> tf.data.Dataset:
    """Makes the rows of examples.

    Args:
      source: The task, its lengths and packing.
      examples: Result of `source.task_dataset`.
      spec: Features that the objective reads.
      batch_size: Rows of a batch; only continuous data depend on it.
      rows: The rows of each batch to make, if the data are continuous; by default all.
      to_the_end: Whether the last windows of continuous data may have fewer tokens.
      converted: Spec of the same task features, whose model features are made instead of `spec`'s.

    Returns:
      Dataset of rows with the model features.

    Raises:
      UserError: the examples do not suit the spec.
    """
    lengths, padding_ids = spec.task_lengths(source.task_feature_lengths), source.padding_ids()
    if source.continuous:
        examples = inner_sizes.checked(examples, spec, source.name)
        examples = continuous.windows(
            examples,
            spec,
            lengths,
            batch_size=batch_size,
            rows=range(batch_size) if rows is None else rows,
            padding_ids=padding_ids,
            to_the_end=to_the_end,
        )
        padding_ids = dict.fromkeys(lengths)  # windows have no padding
    converter = SpecConverter(
        converted or spec,
        pack=source.pack,
        padding_ids=padding_ids,
        data=source.name,
        packing=source.packing,
        inputs_eos=prompts.missing_eos(source, spec),
    )
    return converter.convert(examples, lengths)


def deterministic(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset whose elements come in the same order each time."""
    options = tf.data.Options()
    options.deterministic = True
    return ds.with_options(options)
