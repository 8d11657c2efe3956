"""Cuts the documents of a task into windows that continue one another in the rows of successive batches.

Each row of a batch has a stream of documents of its own. The first row whose stream is too short for the next window
gets the next document, so the streams depend only on the order of the documents and on the number of rows, and nothing
has to be known about their number or lengths. The data of the billion-word models of ELMo (bilm-tf) is made alike.

Like the converter, these functions have no Python control flow over tensors and are not converted by AutoGraph.
"""

from collections.abc import Mapping

import tensorflow as tf

from t5x_like.data.features import FeatureSpec

# Documents that are appended to the streams at once, because the cost of tf.data grows with its number of elements.
_DOCUMENTS_AT_ONCE = 64
# Keys of a group of documents beside its features.
_SIZES, _ROWS, _LAST = "number of items", "rows", "last"


@tf.autograph.experimental.do_not_convert
def windows(
    ds: tf.data.Dataset,
    spec: FeatureSpec,
    lengths: Mapping[str, int],
    *,
    batch_size: int,
    rows: range,
    padding_ids: Mapping[str, int | None],
    to_the_end: bool,
) -> tf.data.Dataset:
    """Cuts documents into windows.

    Args:
      ds: Documents with the task features of the spec, `[any length]`.
      spec: Features that the objective reads; `data.continuous.check_spec` accepts it.
      lengths: Task feature -> number of items of a window, equal for all.
      batch_size: Number of rows of a batch, each of which has a stream.
      rows: The rows to return.
      padding_ids: Task feature -> id that is padding at the end of a document, or None if every id is text.
      to_the_end: Whether to return what is left in the streams after the last document. Windows are then shorter or
        empty once a stream has ended.

    Returns:
      Dataset of windows with the task features: the windows of `rows` in the first batch, then in the second, ….
    """
    (length,) = set(lengths.values())
    (lead,) = {spec.lead(name) for name in lengths}
    padding = padding_ids.get(lead, 0) if spec.task_dtype(lead) == "int32" else None
    ds = ds.map(lambda example: _document(example, spec, lead, padding))
    shapes = {name: spec.shape[1:] for name, spec in ds.element_spec.items()}
    ds = ds.scan(tf.zeros([batch_size], tf.int32), lambda left, document: _choose_row(left, document, length))
    ds = ds.ragged_batch(_DOCUMENTS_AT_ONCE, row_splits_dtype=tf.int32).map(_group)
    if to_the_end:
        nothing = {name: tf.zeros([0, *shapes[name]], spec.task_dtype(name)) for name in lengths}
        none = tf.zeros([0], tf.int32)
        ds = ds.concatenate(tf.data.Dataset.from_tensors(nothing | {_SIZES: none, _ROWS: none, _LAST: True}))
    empty = {name: tf.zeros([0, *shapes[name]], spec.task_dtype(name)) for name in lengths}
    ds = ds.scan(
        (empty, tf.zeros([batch_size], tf.int32)), lambda streams, group: _advance(streams, group, lengths, rows)
    )
    return ds.flat_map(tf.data.Dataset.from_tensor_slices)


def _document(
    example: Mapping[str, tf.Tensor], spec: FeatureSpec, lead: str, padding: int | None
) -> dict[str, tf.Tensor]:
    """Returns the features of a document without padding at its end, all as long as the lead."""
    ids = example[lead]
    size = tf.shape(ids)[0]
    if padding is not None:
        size = tf.reduce_max(tf.concat([[0], tf.where(ids != padding, tf.range(1, size + 1), 0)], axis=0))
    found = {}
    for name in spec.task_features:
        items = tf.cast(example[name][:size], spec.task_dtype(name))
        missing = tf.maximum(size - tf.shape(items)[0], 0)
        found[name] = tf.pad(items, [[0, missing], *[[0, 0]] * (items.shape.rank - 1)])
        found[name].set_shape([None, *items.shape[1:]])
    return found


def _choose_row(left: tf.Tensor, document: Mapping[str, tf.Tensor], length: int):
    """Gives a document to the first row without a full window; a batch is full if every row has one.

    `left` has the number of items of each row that are in no window yet, `[rows]`; a window has `length` items.
    """
    row = tf.argmax(left < length, output_type=tf.int32)  # a row is short, because full batches are taken at once
    size = tf.shape(next(iter(document.values())))[0]
    left += size * tf.one_hot(row, tf.size(left), dtype=tf.int32)
    return left - tf.reduce_min(left) // length * length, {**document, _ROWS: row}


def _group(batch: Mapping[str, tf.Tensor | tf.RaggedTensor]) -> dict[str, tf.Tensor]:
    """Joins the documents of a batch: task feature -> the items of all, and their sizes and rows."""
    features = {name: items for name, items in batch.items() if name != _ROWS}
    sizes = next(iter(features.values())).row_lengths()
    return {
        **{name: items.flat_values for name, items in features.items()},
        _SIZES: sizes,
        _ROWS: batch[_ROWS],
        _LAST: tf.constant(False),
    }


def _advance(streams, group: Mapping[str, tf.Tensor], lengths: Mapping[str, int], rows: range):
    """Appends documents to the streams, and takes the windows of all batches that are full.

    Args:
      streams: Task feature -> the items that are in no window yet, ordered by row; and their number in
        each row.
      group: Documents, and whether the streams end.
      lengths: Task feature -> number of items of a window.
      rows: The rows to return.

    Returns:
      The streams afterwards, and task feature -> ragged windows `[batches * rows, (length)]`.
    """
    items, left = streams
    (length,), batch_size = set(lengths.values()), left.shape[0]
    owners = tf.concat([tf.repeat(tf.range(batch_size), left), tf.repeat(group[_ROWS], group[_SIZES])], 0)
    order = tf.argsort(owners, stable=True)
    items = {name: tf.gather(tf.concat([old, group[name]], 0), order) for name, old in items.items()}
    left += tf.math.unsorted_segment_sum(group[_SIZES], group[_ROWS], batch_size)
    full, all_of_them = tf.reduce_min(left) // length, -(-tf.reduce_max(left) // length)
    batches = tf.where(group[_LAST], all_of_them, full)
    starts = tf.cumsum(left, exclusive=True)
    # The window of a row in a batch: where it begins, and its number of items, which is less only at the end.
    begin = tf.range(batches)[:, tf.newaxis] * length
    mine = slice(rows.start, rows.stop)
    sizes = tf.reshape(tf.clip_by_value(left[mine] - begin, 0, length), [-1])
    firsts = tf.reshape(starts[mine] + begin, [-1])
    taken = tf.ragged.range(firsts, firsts + sizes)
    found = {
        name: tf.RaggedTensor.from_row_splits(tf.gather(values, taken.values), taken.row_splits)
        for name, values in items.items()
    }
    position = tf.range(tf.size(owners)) - tf.repeat(starts, left)
    kept = position >= batches * length
    items = {name: tf.boolean_mask(values, kept) for name, values in items.items()}
    return (items, tf.maximum(left - batches * length, 0)), found
