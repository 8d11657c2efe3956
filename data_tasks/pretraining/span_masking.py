"""SpanBERT's masking: contiguous spans of whole words (Joshi et al. 2020, section 3.1, and its `masking.py`)."""

import dataclasses
import math

import numpy as np
import seqio
import tensorflow as tf

from data_tasks.pretraining.masked_lm import (
    MASK_RATE,
    NGRAM_DRAW,
    ORDER_DRAW,
    REPLACEMENT_DRAW,
    TOKEN_DRAW,
    Draw,
    Rows,
    fraction,
    mixed_replacements,
    number_words,
)
from data_tasks.pretraining.row_maker import SPECIAL_TOKENS
from t5x_like.errors import UserError
from t5x_like.vocabularies.special_tokens import word_starts


@dataclasses.dataclass(frozen=True)
class SpanMasking:
    """Chooses spans of whole words until 15 % of the text, rounded up, is chosen.

    A span begins with the word of a token that is drawn from the tokens that are not chosen yet. Its number of words is
    drawn from a geometric distribution that is cut off at `max_words`. A span ends with the text, or in the middle of a
    word if enough tokens are chosen, and may extend over chosen tokens. Special tokens neither count nor are chosen.

    The replacement treats adjacent and overlapping spans as one: it becomes [MASK] with probability 0.8, random tokens
    with probability 0.1, or stays as it is. Random tokens are drawn from the text of the examples that are masked
    together, so that they have the frequencies of the corpus.

    Attributes:
      rate: the fraction of tokens to choose; 0: none.
      success: parameter of the geometric distribution.
      max_words: the largest number of words of a span.
      whole_words: whether spans consist of words; if not, of tokens.
    """

    rate: float = MASK_RATE
    success: float = 0.2
    max_words: int = 10
    whole_words: bool = True

    def __post_init__(self):
        if not 0 <= self.rate < 1:
            raise UserError(f"mask rate {self.rate}: not in [0, 1). Give a fraction of the tokens; 0 masks none.")
        if not 0 < self.success < 1:
            raise UserError(f"success={self.success}: not in (0, 1). Give a probability; SpanBERT's is 0.2.")
        if self.max_words < 1:
            raise UserError(f"max_words={self.max_words}: not positive. Give the words of the longest span.")

    def check(self, length: int, max_predictions: int) -> None:
        """Raises a UserError if `targets` cannot hold all masked tokens."""
        most = math.ceil((length - SPECIAL_TOKENS) * self.rate)
        if max_predictions < most:
            raise UserError(
                f"TASK_FEATURE_LENGTHS: up to {most} of {length} tokens of 'inputs' are masked, but 'targets' holds "
                f"only {max_predictions}. Set targets to {most}."
            )

    def choose(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Chooses the tokens to predict; see `Masking.choose`."""
        starts = tf.ones_like(rows.text)
        if self.whole_words:
            starts = tf.gather(tf.constant(word_starts(vocabulary)), rows.tokens)
        cumulative = np.cumsum((1 - self.success) ** np.arange(self.max_words))
        drawn = fraction(draw(NGRAM_DRAW))[..., tf.newaxis]
        words = 1 + tf.reduce_sum(tf.cast(drawn >= tf.constant(cumulative / cumulative[-1]), tf.int32), axis=-1)
        size = tf.reduce_sum(tf.cast(rows.text, tf.int32), axis=1)
        wanted = tf.cast(tf.math.ceil(tf.cast(size, tf.float64) * self.rate), tf.int32)
        return select_spans(rows, starts, draw(ORDER_DRAW), words, wanted)

    def replacements(self, rows: Rows, chosen: tf.Tensor, draw: Draw, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Draws one kind of replacement for each span of adjacent chosen tokens; see `Masking.replacements`."""
        first = chosen & ~tf.pad(chosen, [[0, 0], [1, 0]])[:, :-1]
        span = tf.cumsum(tf.cast(first, tf.int32), axis=1)
        choices = tf.gather(draw(REPLACEMENT_DRAW), tf.where(chosen, span - 1, 0), batch_dims=1)
        text = tf.boolean_mask(rows.tokens, rows.text)
        index = tf.cast(draw(TOKEN_DRAW), tf.int64) % tf.maximum(tf.size(text, tf.int64), 1)
        return mixed_replacements(rows, choices, tf.gather(tf.pad(text, [[0, 1]]), index))


def select_spans(rows: Rows, starts: tf.Tensor, scores: tf.Tensor, words: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Selects spans of words in the order of the scores of their anchors; see `SpanMasking`.

    Args:
      rows: `[examples, length]`.
      starts: which tokens begin a word, bool `[examples, length]`.
      scores: uint32 `[examples, length]`. The next anchor is the token with the highest score that is not selected; if
        scores are uniform, each of these tokens with equal probability.
      words: number of words of a span by its anchor, int32 `[examples, length]`.
      wanted: number of tokens to select per example, `[examples]`.

    Returns:
      bool `[examples, length]`.
    """
    text, word = rows.text, number_words(rows, starts, scores).word
    order = tf.argsort(tf.where(text, tf.cast(scores, tf.int64), -1), axis=1, direction="DESCENDING", stable=True)
    first = tf.gather(word, order, batch_dims=1)
    last = first + tf.gather(words, order, batch_dims=1) - 1

    def add_span(step, total, chosen):
        is_free = ~tf.gather(chosen, order[:, step], batch_dims=1)
        inside = (word >= first[:, step, tf.newaxis]) & (word <= last[:, step, tf.newaxis]) & (word > 0)
        new = tf.cast(inside & ~chosen & is_free[:, tf.newaxis], tf.int32)
        new = (new > 0) & (tf.cumsum(new, axis=1) <= (wanted - total)[:, tf.newaxis])
        return step + 1, total + tf.reduce_sum(tf.cast(new, tf.int32), axis=1), chosen | new

    *_, chosen = tf.while_loop(
        lambda step, total, chosen: (step < tf.shape(word)[1]) & tf.reduce_any(total < wanted),
        add_span,
        (0, tf.zeros_like(wanted), tf.zeros_like(text)),
        parallel_iterations=1,
    )
    return chosen
