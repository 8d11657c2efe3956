"""Packing: the rows that the examples of a window share.

| packing | an example goes to |
|---|---|
| `next_fit` | the current row, or else the next one, as in SeqIO |
| `best_fit` | the fullest of `OPEN_ROWS` rows that has space, in the order of the data; if none has, all are closed |
| `best_fit_decreasing` | the fullest row that has space, or else a new one, the longest examples of the window first |

`best_fit` is ModernBERT's greedy packing of a first-in-first-out buffer (Warner et al. 2024, arXiv:2412.13663, and its
code), whose batches have a fixed number of rows. With one feature, best fit decreasing needs at most 11/9 of the
fewest possible rows, and four (Johnson et al. 1974, doi:10.1137/0203025); Ding et al. 2024 (arXiv:2404.10830) pack
documents with it.

All are pure TensorFlow and depend on the examples of a window alone, so that a position in the data can be saved.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf
from jaxtyping import Int

from t5x_like.data.seqio_feed.task_access import NEXT_FIT

# Rows that `best_fit` keeps open.
OPEN_ROWS = 64
# Examples that are packed together by best fit. The last rows of a window may be partly filled.
WINDOW = 4096

Lengths = Int[tf.Tensor, " examples"]


@dataclasses.dataclass(frozen=True)
class Placement:
    """Placement of the examples of a window in rows.

    Attributes:
      row: Row of each example, int32 `[examples]`, ascending.
      segment: Number of each example in its row, starting at 1, int32 `[examples]`.
      number_of_rows: Scalar int32.
      order: The examples in the order of the rows, int32 `[examples]`; None if that is their own order.
    """

    row: tf.Tensor
    segment: tf.Tensor
    number_of_rows: tf.Tensor
    order: tf.Tensor | None = None

    def arranged(self, rows: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns values by example in the order of the rows, each `[examples, …]`."""
        return dict(rows) if self.order is None else {name: tf.gather(x, self.order) for name, x in rows.items()}


def one_per_row(examples: tf.Tensor) -> Placement:
    """Places each example in its own row."""
    return Placement(tf.range(examples), tf.ones([examples], tf.int32), examples)


def pack(packing: str, counts: Mapping[object, Lengths], capacities: Mapping[object, int], window: int) -> Placement:
    """Places several examples per row.

    Args:
      packing: One of the packings that the module describes.
      counts: Track -> number of tokens of each example.
      capacities: Track -> number of tokens in a row, not less than those of an example.
      window: Maximum number of examples.
    """
    lengths, sizes = list(counts.values()), [capacities[track] for track in counts]
    if packing == NEXT_FIT:
        starts = _row_starts(lengths, sizes, window)
        return _placed(tf.cumsum(tf.cast(starts, tf.int32)) - 1)
    row = _best_fit(lengths, sizes, decreasing=packing == "best_fit_decreasing")
    # Rows in the order of their first examples, whatever the order in which they were opened.
    examples = tf.range(tf.size(row))
    first = tf.math.unsorted_segment_min(examples, row, tf.size(row))
    row = tf.gather(tf.argsort(tf.argsort(first)), row)
    order = tf.argsort(row, stable=True)
    return dataclasses.replace(_placed(tf.gather(row, order)), order=order)


def _placed(row: tf.Tensor) -> Placement:
    """Returns the placement of examples in the order of their rows."""
    starts = tf.concat([[True], row[1:] != row[:-1]], axis=0)[: tf.size(row)]
    first = tf.cast(tf.squeeze(tf.where(starts), 1), tf.int32)
    segment = tf.range(tf.size(row)) - tf.gather(first, row) + 1
    return Placement(row, segment, tf.size(first))


def _best_fit(counts: Sequence[Lengths], capacities: Sequence[int], *, decreasing: bool) -> tf.Tensor:
    """Returns the row of each example, int32 `[examples]`. Numbers of rows may be left out."""
    size = tf.size(counts[0])
    order = tf.argsort(tf.add_n(list(counts)), direction="DESCENDING", stable=True) if decreasing else tf.range(size)
    needed = tf.gather(tf.stack(counts), order, axis=1)
    rows, opened = tf.range(size), size if decreasing else OPEN_ROWS
    largest = tf.constant(sum(capacities) + 1)

    def place(index, base, space, placed):
        need = needed[:, index, tf.newaxis]
        left = space - need
        fits = tf.reduce_all(left >= 0, axis=0) & (rows >= base) & (rows < base + opened)
        found = tf.reduce_any(fits)
        tightest = tf.argmin(tf.where(fits, tf.reduce_sum(left, axis=0), largest), output_type=tf.int32)
        base = tf.where(found, base, base + opened)  # all rows below have an example
        row = tf.where(found, tightest, base)
        space -= need * tf.cast(rows == row, tf.int32)
        return index + 1, base, space, placed.write(index, row)

    space = tf.tile(tf.constant(capacities, tf.int32)[:, tf.newaxis], [1, size])
    placed = tf.TensorArray(tf.int32, size, element_shape=[])
    *_, placed = tf.while_loop(lambda index, *_: index < size, place, (0, 0, space, placed), parallel_iterations=1)
    return tf.gather(placed.stack(), tf.argsort(order))


def _row_starts(counts: Sequence[Lengths], capacities: Sequence[int], window: int) -> tf.Tensor:
    """Returns which examples start a row by next fit, bool `[examples]`.

    For each example, a binary search in cumulative sums finds the first following example that no longer fits into a
    row that starts with it. The examples that start a row are those reached from the first example by such jumps, which
    are found by pointer doubling.
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
