"""Noise masks of T5's patterns for batches of rows (Raffel et al. 2020, sections 3.1.4 and 3.3).

Row i has `lengths[i]` tokens, followed by padding, which is never noise. Seeds are stateless, `[2]`.
"""

import tensorflow as tf

from t5x_like.data import span_lengths
from t5x_like.errors import UserError


def uniform_below(limits: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws an integer uniformly from 0 … limit - 1 for each of `limits` (at least 1), int32 `[rows]`."""
    fractions = tf.random.stateless_uniform(tf.shape(limits), seed, dtype=tf.float64)
    return tf.cast(fractions * tf.cast(limits, tf.float64), tf.int32)


def iid_mask(lengths: tf.Tensor, width: int, seed: tf.Tensor, noise_density: float) -> tf.Tensor:
    """Chooses each token independently as noise with probability `noise_density`.

    Args:
      lengths: number of tokens per row, `[rows]`.
      width: maximum of `lengths`.
      seed: stateless seed, `[2]`.
      noise_density: expected fraction of noise tokens.

    Returns:
      bool `[rows, width]`.
    """
    drawn = tf.random.stateless_uniform([tf.shape(lengths)[0], width], seed) < noise_density
    return drawn & tf.sequence_mask(lengths, width)


def regular_mask(
    lengths: tf.Tensor, width: int, seed: tf.Tensor, noise_density: float, min_span: int = 1, max_span: int = 5
) -> tf.Tensor:
    """Places spans of equal length at equal distances. The span length and the offset are drawn per row.

    Args:
      lengths: number of tokens per row, `[rows]`.
      width: maximum of `lengths`.
      seed: stateless seed, `[2]`.
      noise_density: fraction of noise tokens. The period is `round(span / noise_density)` tokens.
      min_span: minimum span length.
      max_span: maximum span length. The span length is uniform between the two.

    Returns:
      bool `[rows, width]`. The ends of a row may cut spans short.
    """
    span_seed, offset_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    spans = min_span + uniform_below(tf.fill(tf.shape(lengths), max_span - min_span + 1), span_seed)
    periods = tf.cast(tf.round(tf.cast(spans, tf.float64) / noise_density), tf.int32)
    offsets = uniform_below(periods, offset_seed)
    phases = tf.math.floormod(tf.range(width) + offsets[:, tf.newaxis], periods[:, tf.newaxis])
    return (phases < spans[:, tf.newaxis]) & tf.sequence_mask(lengths, width)


def random_prefix_lengths(lengths: tf.Tensor, seed: tf.Tensor, noise_density: float = 0.5) -> tf.Tensor:
    """Draws the length of the prefix that precedes the noise.

    The length is uniform from `(1 - 2 * noise_density) * (length - 1)`, rounded and at least 1, to `length - 1`. The
    noise after the prefix has at least one token, and a mean fraction of `noise_density`.

    Args:
      lengths: number of tokens per row, `[rows]`, at least 2.
      seed: stateless seed, `[2]`.
      noise_density: expected fraction of noise tokens, at most 0.5. With 0.5 all split positions are equally likely.

    Returns:
      int32 `[rows]`, each from 1 to `length - 1`.

    Raises:
      UserError: `noise_density` is not greater than 0 and at most 0.5.
    """
    if not 0 < noise_density <= 0.5:
        raise UserError(
            f"noise_density={noise_density} of a prefix pattern is out of range. Give a number above 0 and at most 0.5."
        )
    longest = lengths - 1
    shortest = tf.cast(tf.round((1 - 2 * noise_density) * tf.cast(longest, tf.float64)), tf.int32)
    shortest = tf.clip_by_value(shortest, 1, tf.maximum(longest, 1))
    return shortest + uniform_below(tf.maximum(longest - shortest + 1, 1), seed)


def after_prefix_mask(lengths: tf.Tensor, width: int, seed: tf.Tensor, noise_density: float = 0.5) -> tf.Tensor:
    """Chooses all tokens after a random prefix as noise, bool `[rows, width]`; see `random_prefix_lengths`."""
    prefixes = random_prefix_lengths(lengths, seed, noise_density)
    return tf.sequence_mask(lengths, width) & ~tf.sequence_mask(prefixes, width)


def random_spans_mask(
    lengths: tf.Tensor,
    width: int,
    seed: tf.Tensor,
    noise_density: float,
    mean_noise_span_length: float,
    *,
    random_roll: bool = False,
) -> tf.Tensor:
    """Places spans of random lengths.

    The noise tokens and the other tokens are each divided into the same number of spans by a uniformly random
    composition. The spans alternate. The first span of a row is not noise, the last one is.

    Args:
      lengths: number of tokens per row, `[rows]`, at least 2.
      width: maximum of `lengths`.
      seed: stateless seed, `[2]`.
      noise_density: fraction of noise tokens.
      mean_noise_span_length: mean length of a noise span in tokens.
      random_roll: whether to roll each row by a random number of tokens, so that noise is equally likely at all
        positions. A span that extends over the end of a row then becomes two.

    Returns:
      bool `[rows, width]`, False after the end of a row.
    """
    # The same counts as span_lengths.noise_counts, which also computes in float32.
    scaled = tf.round(tf.cast(lengths, tf.float32) * noise_density)
    noise = tf.clip_by_value(tf.cast(scaled, tf.int32), 1, lengths - 1)
    spans = tf.cast(tf.round(tf.cast(noise, tf.float32) / mean_noise_span_length), tf.int32)
    spans = tf.minimum(tf.clip_by_value(spans, 1, noise), lengths - noise)

    first_seed, second_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    max_noise, max_spans = span_lengths.noise_counts(width, noise_density, mean_noise_span_length)
    noise_ends = _random_composition_ends(noise, spans, max_noise, max_spans, first_seed)
    other_ends = _random_composition_ends(lengths - noise, spans, width - max_noise, max_spans, second_seed)
    starts = other_ends + tf.pad(noise_ends, [[0, 0], [1, 0]])[:, :-1]  # of the noise spans within the row
    ends = other_ends + noise_ends
    positions = tf.range(width)
    begun = tf.searchsorted(starts, _rows_of(positions, starts), side="right")
    ended = tf.searchsorted(ends, _rows_of(positions, ends), side="right")
    mask = begun > ended
    if not random_roll:
        return mask
    offsets = uniform_below(lengths, tf.random.experimental.stateless_fold_in(seed, 2))
    return roll(mask, lengths, offsets)


def roll(rows: tf.Tensor, lengths: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    """Rolls the tokens of each row to the right. Tokens rolled over the end of a row reappear at its beginning.

    Args:
      rows: `[rows, width]`.
      lengths: number of tokens per row, `[rows]`. Later positions do not change.
      offsets: number of positions per row, `[rows]`. Negative offsets roll to the left.

    Returns:
      `[rows, width]`.
    """
    positions = tf.range(tf.shape(rows)[1])[tf.newaxis]
    counts = tf.maximum(lengths, 1)[:, tf.newaxis]
    sources = tf.math.floormod(positions - offsets[:, tf.newaxis], counts)
    return tf.gather(rows, tf.where(positions < lengths[:, tf.newaxis], sources, positions), batch_dims=1)


def _rows_of(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.tile(values[tf.newaxis], [tf.shape(like)[0], 1])


def _random_composition_ends(
    totals: tf.Tensor, parts: tf.Tensor, max_total: int, max_parts: int, seed: tf.Tensor
) -> tf.Tensor:
    """Draws a uniformly random composition of each total into positive parts and returns the ends of the parts.

    A composition of n into k parts is a choice of k - 1 of the n - 1 positions between items.

    Args:
      totals: `[rows]`, at most `max_total`.
      parts: number of parts per row, `[rows]`, at most `max_parts` and the total.
      max_total: maximum possible total.
      max_parts: maximum possible number of parts.
      seed: stateless seed, `[2]`.

    Returns:
      int32 `[rows, max_parts]`, ascending. Entries from the last part on equal the total.
    """
    rows = tf.shape(totals)[0]
    if max_parts == 1:
        return totals[:, tf.newaxis]
    scores = tf.random.stateless_uniform([rows, max_total - 1], seed, minval=None, dtype=tf.uint32)
    # Positions after the end of a row are chosen last. The position breaks ties, so that exactly k - 1 are chosen.
    scores = tf.cast(scores, tf.int64) * max_total + tf.range(max_total - 1, dtype=tf.int64)
    scores = tf.where(tf.range(1, max_total) < totals[:, tf.newaxis], scores, -1)
    positions = tf.math.top_k(scores, k=min(max_parts - 1, max_total - 1)).indices + 1
    chosen = tf.range(tf.shape(positions)[1]) < parts[:, tf.newaxis] - 1
    ends = tf.sort(tf.where(chosen, positions, totals[:, tf.newaxis]), axis=1)
    return tf.concat([ends, totals[:, tf.newaxis]], axis=1)
