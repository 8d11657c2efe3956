"""The targets of XLNet: spans of pieces with context around them (`_sample_mask` of the released code)."""

import numpy as np
import seqio
import tensorflow as tf

from t5x_like.vocabularies.special_tokens import sentencepiece_pieces, word_starts

MAX_PIECES = 5
# Number of tokens of context per target.
CONTEXT = 6
# The punctuation of the released code, in which ' < = > are missing.
_PUNCTUATION = frozenset('!"#$%&"()*+,-./:;?@[\\]^_`{|}~')


def starts_of_pieces(vocabulary: seqio.Vocabulary) -> np.ndarray:
    """Returns which ids a span may begin with, bool `[vocab_size]`: the beginnings of words, `<…>` and punctuation."""
    starts = word_starts(vocabulary).copy()
    for index, piece in enumerate(sentencepiece_pieces(vocabulary) or ()):
        starts[index] |= piece.startswith(("▁", "<")) or piece in _PUNCTUATION
    return starts


def sample_targets(
    tokens: tf.Tensor, starts: tf.Tensor, goal: int, seed: tf.Tensor, *, is_reversed: bool | tf.Tensor = False
) -> tf.Tensor:
    """Chooses spans until `goal` tokens are chosen.

    The number n of pieces of a span is drawn from 1 … 5 with probabilities proportional to 1 / n, and cut to what is
    missing. A span has 6n tokens of context, of which a uniform number precedes it. It begins with the next piece after
    them that begins a word, and ends n pieces later; the released code intends n words, but looks at the first piece to
    find their end. The next span comes after the rest of the context. If the spans up to the end of the row have too
    few tokens, random tokens are added.

    Args:
      tokens: int32 `[rows, length]`.
      starts: see `starts_of_pieces`.
      goal: number of tokens to choose, at most the length.
      seed: stateless seed `[2]`.
      is_reversed: whether rows are reversed text, whose spans are chosen in the order of the text.

    Returns:
      bool `[rows, length]` with `goal` tokens per row.
    """
    is_reversed = tf.convert_to_tensor(is_reversed)

    def in_order(x):
        return tf.cond(is_reversed, lambda: tf.reverse(x, [1]), lambda: x)

    tokens = in_order(tokens)
    rows, length = tf.unstack(tf.shape(tokens))
    position = tf.range(length)[tf.newaxis]
    is_start = tf.gather(starts, tokens)
    # The positions that begin a word, in order; and the first of them from each position on, the length without one.
    ordered = tf.pad(tf.sort(tf.where(is_start, position, length), axis=1), [[0, 0], [0, 1]])
    ordered = tf.where(tf.range(length + 1) == length, length, ordered)
    before = tf.pad(tf.cast(is_start, tf.int32), [[0, 0], [1, 0]])
    following = tf.gather(ordered, tf.cumsum(before, axis=1), batch_dims=1)
    weights = 1 / np.arange(1, MAX_PIECES + 1)
    cumulative = tf.constant(np.cumsum(weights / weights.sum())[:-1], tf.float32)
    spans_seed, fill_seed = tf.unstack(tf.random.split(seed, 2))

    def add_span(step, current, number, chosen):
        draws = tf.random.stateless_uniform([2, rows], tf.random.fold_in(spans_seed, step))
        pieces = 1 + tf.reduce_sum(tf.cast(draws[0][:, tf.newaxis] >= cumulative, tf.int32), axis=1)
        pieces = tf.minimum(pieces, goal - number)
        context = CONTEXT * pieces
        left = tf.cast(draws[1] * tf.cast(context, tf.float32), tf.int32)
        begin = tf.gather(following, tf.minimum(current + left, length), batch_dims=1)
        end = begin + pieces
        # A row ends with the first span that does not fit, and with its last target.
        fits = (current < length) & (number < goal) & (end < length)
        inside = (position >= begin[:, tf.newaxis]) & (position < end[:, tf.newaxis]) & fits[:, tf.newaxis]
        return (
            step + 1,
            tf.where(fits, end + context - left, length),
            number + tf.where(fits, pieces, 0),
            chosen | inside,
        )

    none = tf.zeros([rows], tf.int32)
    *_, number, chosen = tf.while_loop(
        lambda step, current, number, chosen: tf.reduce_any((current < length) & (number < goal)),
        add_span,
        (tf.constant(0), none, none, tf.zeros_like(is_start)),
        parallel_iterations=1,
    )
    # Random tokens in the order of scores, after those that are chosen already.
    scores = tf.random.stateless_uniform([rows, length], fill_seed) + tf.cast(chosen, tf.float32)
    place = tf.argsort(tf.argsort(scores, axis=1, direction="DESCENDING", stable=True), axis=1)
    return in_order(place < goal)
