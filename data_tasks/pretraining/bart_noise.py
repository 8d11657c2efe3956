"""BART's five noise functions (Lewis et al. 2020, section 2.2).

Each one has a deterministic core, which takes the choice (tokens, order, span lengths) as an argument, and a function
that draws this choice at random. Rows contain text only; special tokens such as EOS are added afterwards. Row i has
`counts[i]` tokens, followed by 0.
"""

import functools
import itertools
import math

import tensorflow as tf

from data_tasks.pretraining import noise_masks

# As in BART's code: the table of the Poisson distribution ends where a length is less probable than this.
_LEAST_PROBABILITY = 1e-7

Noised = tuple[tf.Tensor, tf.Tensor]
"""Tokens `[rows, width]`, 0 after the end of each row, and the number of tokens per row, `[rows]`."""


# ---- deterministic cores ---------------------------------------------------------------------------------------------


def mask_tokens(tokens: tf.Tensor, chosen: tf.Tensor, mask_id: int) -> tf.Tensor:
    """Token masking: A B C D E F -> A _ C D _ F. `chosen` is bool `[rows, width]`."""
    return tf.where(chosen, mask_id, tokens)


def delete_tokens(tokens: tf.Tensor, counts: tf.Tensor, chosen: tf.Tensor) -> Noised:
    """Token deletion: A B C D E F -> A C D F. `chosen` is bool `[rows, width]`."""
    return _dense(tf.ragged.boolean_mask(tokens, _real(tokens, counts) & ~chosen))


def infill(
    tokens: tf.Tensor, counts: tf.Tensor, word_starts: tf.Tensor, span_lengths: tf.Tensor, mask_id: int
) -> Noised:
    """Text infilling: each span of words becomes one mask; A B C D E F -> A _ D _ F.

    Args:
      tokens: `[rows, width]`.
      counts: number of tokens per row, `[rows]`.
      word_starts: which tokens begin a word, bool `[rows, width]`. The first token of a row does.
      span_lengths: length in words of the span that begins at a token, 0 for none, int32 `[rows, width]`. Only entries
        at word starts are used. A span that begins inside another one extends it.
      mask_id: the id that replaces a span.

    Returns:
      The remaining tokens and the number of tokens per row.
    """
    rows, width = tf.shape(tokens)[0], tf.shape(tokens)[1]
    real = _real(tokens, counts)
    word_starts &= real
    word = tf.maximum(tf.cumsum(tf.cast(word_starts, tf.int32), axis=1) - 1, 0)  # word index of each token
    words = tf.ragged.boolean_mask(span_lengths, word_starts).to_tensor(shape=[None, None])
    words = tf.pad(words, [[0, 0], [0, width + 1 - tf.shape(words)[1]]])  # length of the span that begins at each word
    # Words after the first word of a span are inside it. A running sum counts the spans around each word.
    ends = tf.range(rows)[:, tf.newaxis] * (width + 1) + tf.minimum(tf.range(width + 1) + words, width)
    begins = tf.cast(words > 0, tf.int32)
    ended = tf.math.unsorted_segment_sum(tf.reshape(begins, [-1]), tf.reshape(ends, [-1]), rows * (width + 1))
    begun = tf.pad(begins, [[0, 0], [1, 0]])[:, :-1]
    inside = tf.cumsum(begun - tf.reshape(ended, [rows, width + 1]), axis=1) > 0
    in_span, in_first = (tf.gather(each, word, batch_dims=1) for each in (inside, words > 0))
    kept = real & ~in_span & (word_starts | ~in_first)
    return _dense(tf.ragged.boolean_mask(tf.where(word_starts & in_first, mask_id, tokens), kept))


def insert(tokens: tf.Tensor, counts: tf.Tensor, inserted: tf.Tensor, mask_id: int) -> Noised:
    """Inserts masks between tokens, as text infilling does for spans of length 0: A B -> A _ B.

    Args:
      tokens: `[rows, width]`.
      counts: number of tokens per row, `[rows]`.
      inserted: which positions of the result hold an inserted mask, bool `[rows, new_width]`, all within the new length
        of the row.
      mask_id: the id to insert.

    Returns:
      The tokens with masks and the number of tokens per row.
    """
    added = tf.reduce_sum(tf.cast(inserted, tf.int32), axis=1)
    new_width = tf.shape(inserted)[1]
    old = tf.cumsum(tf.cast(~inserted, tf.int32), axis=1) - 1
    moved = tf.gather(tokens, tf.clip_by_value(old, 0, tf.shape(tokens)[1] - 1), batch_dims=1)
    counts += added
    return tf.where(tf.sequence_mask(counts, new_width), tf.where(inserted, mask_id, moved), 0), counts


def permute_sentences(tokens: tf.Tensor, counts: tf.Tensor, sentences: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """Sentence permutation: ABC. DE. FG. -> FG. ABC. DE.

    Args:
      tokens: `[rows, width]`.
      counts: number of tokens per row, `[rows]`.
      sentences: the sentence index of each token, int32 `[rows, width]`, ascending from 0.
      order: which sentence comes at each position, a permutation, int32 `[rows, sentences]`.

    Returns:
      The permuted tokens, `[rows, width]`.
    """
    width = tf.shape(tokens)[1]
    positions = tf.argsort(order, axis=1)  # of each sentence
    position = tf.gather(positions, tf.minimum(sentences, tf.shape(order)[1] - 1), batch_dims=1)
    position = tf.where(_real(tokens, counts), position, width)
    return tf.gather(tokens, tf.argsort(position * width + tf.range(width), axis=1), batch_dims=1)


def rotate(tokens: tf.Tensor, counts: tf.Tensor, first: tf.Tensor) -> tf.Tensor:
    """Document rotation to begin at the token `first` `[rows]`: ABC. DE. FG. -> E. FG. ABC. D."""
    return noise_masks.roll(tokens, counts, -first)


# ---- random choices --------------------------------------------------------------------------------------------------


def choose(among: tf.Tensor, ratio: float, seed: tf.Tensor) -> tf.Tensor:
    """Chooses the fraction `ratio` of the True entries of each row, rounded up: bool `[rows, width]`."""
    return _first(among, _share(tf.reduce_sum(tf.cast(among, tf.int32), axis=1), ratio), seed)


def draw_spans(
    word_starts: tf.Tensor, ratio: float, mean_length: float, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws the spans of text infilling until they cover `ratio` of the words. The last span is shortened to fit.

    Args:
      word_starts: which tokens begin a word, bool `[rows, width]`, False for padding.
      ratio: fraction of the words to cover.
      mean_length: mean of the Poisson distribution of span lengths, in words.
      seed: stateless seed, `[2]`.

    Returns:
      The length in words of the span that begins at each token, int32 `[rows, width]`, at random words; and the number
      of spans of length 0 per row, `[rows]`.
    """
    length_seed, start_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    words = tf.reduce_sum(tf.cast(word_starts, tf.int32), axis=1)
    budget = _share(words, ratio)[:, tf.newaxis]
    # So many draws cover less than the budget only once in millions of rows; such a row has slightly less noise.
    draws = tf.cast(tf.math.ceil(2 * tf.cast(tf.reduce_max(budget), tf.float32) / mean_length), tf.int32)
    draws += math.ceil(32 / mean_length)
    drawn = tf.random.stateless_uniform([tf.shape(words)[0], draws], length_seed)
    lengths = tf.reduce_sum(tf.cast(drawn[..., tf.newaxis] >= _poisson_cdf(mean_length), tf.int32), axis=-1)
    before = tf.cumsum(lengths, axis=1, exclusive=True)
    used = before < budget
    lengths = tf.where(used, tf.minimum(lengths, budget - before), 0)
    without_word = tf.reduce_sum(tf.cast(used & (lengths == 0), tf.int32), axis=1)

    # The spans of length 1 or more, in the order drawn, begin at the same number of words, in random order.
    order = tf.argsort(tf.cast(lengths == 0, tf.int32), axis=1, stable=True)
    lengths = tf.gather(lengths, order, batch_dims=1)
    scores = tf.random.stateless_uniform(tf.shape(word_starts), start_seed)
    rank = tf.argsort(tf.argsort(tf.where(word_starts, scores, 2.0), axis=1), axis=1)
    begins = word_starts & (rank < draws)
    return tf.where(begins, tf.gather(lengths, tf.minimum(rank, draws - 1), batch_dims=1), 0), without_word


def draw_insertions(counts: tf.Tensor, added: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws where `added[i]` masks go in a row of `counts[i]` tokens: bool `[rows, width]`, positions of the result."""
    total = counts + added
    return _first(tf.sequence_mask(total), added, seed)


def draw_order(numbers: tf.Tensor, width: int | tf.Tensor, ratio: float, seed: tf.Tensor) -> tf.Tensor:
    """Draws permutations of 0 … width - 1 in which `ratio` of the first `numbers[i]` indices, rounded up, may move."""
    chosen_seed, first_seed, second_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
    moved = choose(tf.sequence_mask(numbers, width), ratio, chosen_seed)
    fixed = 1.0 + tf.range(width, dtype=tf.float32)  # fixed indices come last, in order, on both sides
    from_here, to_here = (
        tf.argsort(tf.where(moved, tf.random.stateless_uniform(tf.shape(moved), order_seed), fixed), axis=1)
        for order_seed in (first_seed, second_seed)
    )
    return tf.gather(to_here, tf.argsort(from_here, axis=1), batch_dims=1)


def _share(counts: tf.Tensor, ratio: float) -> tf.Tensor:
    return tf.cast(tf.math.ceil(tf.cast(counts, tf.float64) * ratio), tf.int32)


def _first(among: tf.Tensor, how_many: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Chooses `how_many` of the True entries of each row at random."""
    scores = tf.where(among, tf.random.stateless_uniform(tf.shape(among), seed), 2.0)
    rank = tf.argsort(tf.argsort(scores, axis=1), axis=1)
    return among & (rank < how_many[:, tf.newaxis])


@functools.cache
def _poisson_cdf(mean: float) -> tuple[float, ...]:
    """P(length <= k) for k = 0, 1, … as in BART's code: cut off where P(length = k) is tiny and scaled to 1."""
    probabilities = [math.exp(-mean)]
    while len(probabilities) <= mean or probabilities[-1] >= _LEAST_PROBABILITY:
        probabilities.append(probabilities[-1] * mean / len(probabilities))
    total = sum(probabilities)
    return tuple(value / total for value in itertools.accumulate(probabilities[:-1]))


def _real(tokens: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    return tf.sequence_mask(counts, tf.shape(tokens)[1])


def _dense(sequences: tf.RaggedTensor) -> Noised:
    return sequences.to_tensor(), tf.cast(sequences.row_lengths(), tf.int32)
