"""DeBERTa's masking: n-grams of words in windows (`NGramMaskGenerator` of the released code, in `mlm_task.py`)."""

import dataclasses
import math
import unicodedata

import numpy as np
import seqio
import tensorflow as tf

from data_tasks.pretraining.masked_lm import NGRAM_DRAW, ORDER_DRAW, Draw, Rows, fraction
from data_tasks.pretraining.ngram_masking import NgramMasking
from t5x_like.vocabularies.special_tokens import sentencepiece_pieces, word_starts

# ASCII characters that are neither letters nor digits count as punctuation, as in BERT's tokenizer.
_ASCII_SIGNS = frozenset(chr(code) for code in range(33, 127) if not chr(code).isalnum())


def deberta_word_starts(vocabulary: seqio.Vocabulary) -> np.ndarray:
    """Returns which ids begin a word: those of `word_starts`, and single punctuation marks, spaces and controls.

    Args:
      vocabulary: a vocabulary with a SentencePiece model, or with the attributes `word_starts` and `pieces`.

    Returns:
      bool `[vocab_size]`.

    Raises:
      UserError: the word boundaries of the vocabulary are unknown.
    """
    starts = np.array(word_starts(vocabulary), bool)
    for index, piece in enumerate(sentencepiece_pieces(vocabulary) or getattr(vocabulary, "pieces", ())):
        if len(piece) == 1 and (piece in _ASCII_SIGNS or unicodedata.category(piece)[0] in "PCZ"):
            starts[index] = True
    return starts


@dataclasses.dataclass(frozen=True)
class WindowMasking(NgramMasking):
    """Chooses one n-gram of whole words in each window of words, n with probability proportional to 1 / n.

    From left to right, a window has 6n words (one over the rate), or those that are left. The n-gram begins at any of
    them, and the next window begins after the later of the two ends. The words that are chosen are then taken from left
    to right until there are as many tokens as BERT chooses: the last word may exceed this number, and words at the end
    of a row are chosen less often, as in the released code. If the length of `targets` does not suffice for the last
    word, its last tokens are left out. Neither special tokens nor unknown ones are chosen.

    Attributes:
      rate: the fraction of tokens to choose.
      max_words: the largest n. With 1, a window has tokens in place of words.
    """

    def choose(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Chooses the tokens to predict; see `Masking.choose`."""
        text = rows.text & (rows.tokens != rows.special.mask)
        if vocabulary.unk_id is not None:
            text &= rows.tokens != vocabulary.unk_id
        first = text
        if self.max_words > 1:
            starts = tf.gather(tf.constant(deberta_word_starts(vocabulary)), rows.tokens)
            first = text & (starts | (tf.cumsum(tf.cast(text, tf.int32), axis=1) == 1))
        word = tf.cumsum(tf.cast(first, tf.int32), axis=1)  # from 1; tokens that are not text are excluded below
        draws = fraction(draw(NGRAM_DRAW)), fraction(draw(ORDER_DRAW))
        marked = mark_words(tf.reduce_max(word, axis=1), *draws, self.max_words, self.rate)
        chosen = text & tf.gather(tf.pad(marked, [[0, 0], [1, 0]]), word, batch_dims=1)
        columns = tf.shape(word)[1] + 1
        # Number of chosen tokens before each word: a word is taken if they are fewer than wanted.
        sizes = tf.math.bincount(
            word, tf.cast(chosen, tf.int32), minlength=columns, maxlength=columns, axis=-1, dtype=tf.int32
        )
        before_word = tf.gather(tf.cumsum(sizes, axis=1, exclusive=True), word, batch_dims=1)
        wanted = self.number_to_choose(rows, max_predictions)[:, tf.newaxis]
        before = tf.cumsum(tf.cast(chosen, tf.int32), axis=1, exclusive=True)
        return chosen & (before_word < wanted) & (before < max_predictions)


def mark_words(counts: tf.Tensor, sizes: tf.Tensor, starts: tf.Tensor, max_words: int, rate: float) -> tf.Tensor:
    """Marks one n-gram of words in each window.

    Args:
      counts: number of words per example, `[examples]`.
      sizes: uniform draws in [0, 1) of n, one per word at which a window may begin, `[examples, length]`.
      starts: uniform draws of the first word, in the same form.
      max_words: the largest n.
      rate: fraction of tokens to choose; a window has the whole part of n / rate words.

    Returns:
      bool `[examples, length]`, by word.
    """
    length, window = tf.shape(sizes)[1], math.floor(1 / rate) if rate else 1
    cumulative = np.cumsum(1 / np.arange(1, max_words + 1))
    bounds = tf.constant(cumulative / cumulative[-1])
    numbers = tf.range(length)[tf.newaxis]

    def mark(offset, marked):
        at = tf.minimum(offset, length - 1)
        draw, place = tf.gather(sizes, at, batch_dims=1), tf.gather(starts, at, batch_dims=1)
        n = tf.minimum(1 + tf.reduce_sum(tf.cast(draw[:, tf.newaxis] >= bounds, tf.int32), axis=1), max_words)
        room = tf.maximum(tf.minimum(n * window, counts - offset), 0)
        first = offset + tf.cast(place * tf.cast(room, tf.float64), tf.int32)
        end = tf.minimum(first + n, counts)
        inside = (numbers >= first[:, tf.newaxis]) & (numbers < end[:, tf.newaxis])
        return tf.maximum(offset + room, end), marked | inside

    _, marked = tf.while_loop(
        lambda offset, marked: tf.reduce_any(offset < counts),
        mark,
        (tf.zeros_like(counts), tf.zeros(tf.shape(sizes), tf.bool)),
        parallel_iterations=1,
    )
    return marked


@dataclasses.dataclass(frozen=True)
class AllMasked(WindowMasking):
    """DeBERTa v3's masking: one token in each window of six, each of which becomes [MASK]."""

    max_words: int = 1

    def replacements(self, rows: Rows, chosen: tf.Tensor, draw: Draw, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Returns [MASK]; see `Masking.replacements`."""
        return tf.fill(tf.shape(rows.tokens), rows.special.mask)
