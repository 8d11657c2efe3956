"""Which tokens of a row are noise: T5's patterns (Raffel et al. 2020, sections 3.1.4 and 3.3), many rows at once.

A row has `lengths[i]` tokens at its beginning and padding after them, which is never noise. Seeds are stateless, `[2]`.
"""

import tensorflow as tf

from t5x_like.data import span_lengths
from t5x_like.errors import UserError


def uniform_below(limits: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """A whole number drawn uniformly from 0 … limit - 1 for each of `limits`, int32 `[rows]`, each at least 1."""
    fractions = tf.random.stateless_uniform(tf.shape(limits), seed, dtype=tf.float64)
    return tf.cast(fractions * tf.cast(limits, tf.float64), tf.int32)


def iid_mask(lengths: tf.Tensor, width: int, seed: tf.Tensor, noise_density: float) -> tf.Tensor:
    """Each token is noise by itself with probability `noise_density`.

    Args:
      lengths: tokens of each row, `[rows]`.
      width: the longest they may be.
      seed: stateless, `[2]`.
      noise_density: fraction of noise tokens, on average.

    Returns:
      bool `[rows, width]`.
    """
    drawn = tf.random.stateless_uniform([tf.shape(lengths)[0], width], seed) < noise_density
    return drawn & tf.sequence_mask(lengths, width)


def regular_mask(
    lengths: tf.Tensor, width: int, seed: tf.Tensor, noise_density: float, min_span: int = 1, max_span: int = 5
) -> tf.Tensor:
    """Spans of one length at equal distances: each row draws its span length, and where in the period it begins.

    Args:
      lengths: tokens of each row, `[rows]`.
      width: the longest they may be.
      seed: stateless, `[2]`.
      noise_density: fraction of noise tokens; the period is `round(span / noise_density)` tokens.
      min_span: the shortest span to draw.
      max_span: the longest span to draw; each length is as likely.

    Returns:
      bool `[rows, width]`; the spans at both ends of a row may be cut short.
    """
    span_seed, offset_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    spans = min_span + uniform_below(tf.fill(tf.shape(lengths), max_span - min_span + 1), span_seed)
    periods = tf.cast(tf.round(tf.cast(spans, tf.float64) / noise_density), tf.int32)
    offsets = uniform_below(periods, offset_seed)
    places = tf.math.floormod(tf.range(width) + offsets[:, tf.newaxis], periods[:, tf.newaxis])
    return (places < spans[:, tf.newaxis]) & tf.sequence_mask(lengths, width)


def random_prefix_lengths(lengths: tf.Tensor, seed: tf.Tensor, noise_density: float = 0.5) -> tf.Tensor:
    """How many tokens come before the noise where all that follows a random prefix is noise.

    The number is uniform from `(1 - 2 * noise_density) * (length - 1)`, rounded and at least 1, to `length - 1`: the
    noise has at least one token and `noise_density` of them on average.

    Args:
      lengths: tokens of each row, `[rows]`, at least 2.
      seed: stateless, `[2]`.
      noise_density: at most 0.5; that makes every split as likely.

    Returns:
      int32 `[rows]`, each from 1 to its length - 1.

    Raises:
      UserError: `noise_density` is not above 0 and at most 0.5.
    """
    if not 0 < noise_density <= 0.5:
        raise UserError(f"noise_density={noise_density} must be above 0 and at most 0.5 after a random prefix")
    most = lengths - 1
    least = tf.cast(tf.round((1 - 2 * noise_density) * tf.cast(most, tf.float64)), tf.int32)
    least = tf.clip_by_value(least, 1, tf.maximum(most, 1))
    return least + uniform_below(tf.maximum(most - least + 1, 1), seed)


def after_prefix_mask(lengths: tf.Tensor, width: int, seed: tf.Tensor, noise_density: float = 0.5) -> tf.Tensor:
    """Everything after a random prefix is noise; see `random_prefix_lengths`. bool `[rows, width]`."""
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
    """Spans of random lengths.

    The noise tokens and the others are each divided into as many spans by a composition drawn uniformly from all there
    are; the spans alternate, the first is not noise and the last one is.

    Args:
      lengths: tokens of each row, `[rows]`, at least 2.
      width: the longest they may be.
      seed: stateless, `[2]`.
      noise_density: fraction of noise tokens.
      mean_noise_span_length: tokens of a noise span, on average.
      random_roll: turn each row round by a random number of tokens, so that noise is as likely at every place; a span
        that reaches over the row's end is then two.

    Returns:
      bool `[rows, width]`, False after the end of a row.
    """
    # The same counts as span_lengths.noise_counts, whose arithmetic is float64 too.
    scaled = tf.round(tf.cast(lengths, tf.float64) * noise_density)
    noise = tf.clip_by_value(tf.cast(scaled, tf.int32), 1, lengths - 1)
    spans = tf.cast(tf.round(tf.cast(noise, tf.float64) / mean_noise_span_length), tf.int32)
    spans = tf.minimum(tf.clip_by_value(spans, 1, noise), lengths - noise)

    first_seed, second_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    max_noise, max_spans = span_lengths.noise_counts(width, noise_density, mean_noise_span_length)
    noise_ends = _random_composition_ends(noise, spans, max_noise, max_spans, first_seed)
    other_ends = _random_composition_ends(lengths - noise, spans, width - max_noise, max_spans, second_seed)
    starts = other_ends + tf.pad(noise_ends, [[0, 0], [1, 0]])[:, :-1]  # where span j of noise begins in the row
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
    """Turns the tokens of each row round to the right, those of its end coming in at its beginning.

    Args:
      rows: `[rows, width]`.
      lengths: tokens of each row, `[rows]`; what follows them stays in its place.
      offsets: by how many places, `[rows]`; below 0 to the left.

    Returns:
      `[rows, width]`.
    """
    places = tf.range(tf.shape(rows)[1])[tf.newaxis]
    counts = tf.maximum(lengths, 1)[:, tf.newaxis]
    turned = tf.math.floormod(places - offsets[:, tf.newaxis], counts)
    return tf.gather(rows, tf.where(places < lengths[:, tf.newaxis], turned, places), batch_dims=1)


def _rows_of(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.tile(values[tf.newaxis], [tf.shape(like)[0], 1])


def _random_composition_ends(
    totals: tf.Tensor, parts: tf.Tensor, most: int, max_parts: int, seed: tf.Tensor
) -> tf.Tensor:
    """Ends of the parts of a uniformly random composition of each total into positive parts.

    A composition of n into k parts is a choice of k - 1 of the n - 1 places between items.

    Args:
      totals: `[rows]`, at most `most`.
      parts: `[rows]`, at most `max_parts` and the total.
      most: the largest total there can be.
      max_parts: the largest number of parts there can be.
      seed: stateless, `[2]`.

    Returns:
      int32 `[rows, max_parts]`, ascending; the total in each place from the last part on.
    """
    rows = tf.shape(totals)[0]
    if max_parts == 1:
        return totals[:, tf.newaxis]
    scores = tf.random.stateless_uniform([rows, most - 1], seed, minval=None, dtype=tf.uint32)
    # Places beyond a row's end are taken last; a place's own number breaks ties, so that exactly k - 1 are taken.
    scores = tf.cast(scores, tf.int64) * most + tf.range(most - 1, dtype=tf.int64)
    scores = tf.where(tf.range(1, most) < totals[:, tf.newaxis], scores, -1)
    places = tf.math.top_k(scores, k=min(max_parts - 1, most - 1)).indices + 1
    taken = tf.range(tf.shape(places)[1]) < parts[:, tf.newaxis] - 1
    ends = tf.sort(tf.where(taken, places, totals[:, tf.newaxis]), axis=1)
    return tf.concat([ends, totals[:, tf.newaxis]], axis=1)
