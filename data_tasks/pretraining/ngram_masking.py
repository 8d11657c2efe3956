"""ALBERT's masking: n-grams of whole words (Lan et al. 2020, section 4.1, and its `create_pretraining_data.py`)."""

import dataclasses
import string

import numpy as np
import seqio
import tensorflow as tf

from data_tasks.pretraining.masked_lm import (
    NGRAM_DRAW,
    ORDER_DRAW,
    BertMasking,
    Draw,
    Rows,
    fraction,
    number_words,
)
from t5x_like.errors import UserError
from t5x_like.vocabularies.special_tokens import sentencepiece_pieces, word_starts

_SINGLE_PIECES = frozenset(string.punctuation) | {"€", "£"}
_ENGLISH = frozenset(string.ascii_letters) | _SINGLE_PIECES


def albert_word_starts(vocabulary: seqio.Vocabulary) -> np.ndarray:
    """Returns which ids begin a word: of a SentencePiece model by ALBERT's rule, else those that the vocabulary names.

    By ALBERT's rule, pieces that begin with whitespace (`▁`) or `<` begin a word, and so do punctuation marks and
    pieces with a character that is neither punctuation nor an English letter.

    Args:
      vocabulary: a vocabulary with a SentencePiece model, whose further ids begin words, or one that has
        `word_starts`, such as a WordPiece vocabulary.

    Returns:
      bool `[vocab_size]`.

    Raises:
      UserError: the vocabulary does not mark words.
    """
    pieces = sentencepiece_pieces(vocabulary)
    if pieces is None:
        return word_starts(vocabulary)
    starts = np.ones(vocabulary.vocab_size, bool)
    for index, piece in enumerate(pieces):
        starts[index] = piece[0] in "▁<" or piece in _SINGLE_PIECES or not _ENGLISH.issuperset(piece)
    return starts


@dataclasses.dataclass(frozen=True)
class NgramMasking(BertMasking):
    """Chooses n-grams of whole words, n with probability proportional to 1 / n.

    Words are considered in random order. Each begins an n-gram, which is shortened until it fits the number of tokens
    to choose; it is skipped if a single word does not fit, or if one of its tokens is chosen already. N-grams end with
    the row, and continue over [SEP]. The number of tokens and the random tokens are BERT's.

    Attributes:
      rate: the fraction of tokens to choose.
      max_words: the largest n.
    """

    max_words: int = 3

    def __post_init__(self):
        super().__post_init__()
        if self.max_words < 1:
            raise UserError(f"max_words={self.max_words}: not positive. Give the words of the longest n-gram.")
        if self.whole_words:
            raise UserError("whole_words=True: n-grams always consist of whole words. Leave it out.")

    def choose(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Chooses the tokens to predict; see `Masking.choose`."""
        starts = tf.gather(tf.constant(albert_word_starts(vocabulary)), rows.tokens)
        cumulative = np.cumsum(1 / np.arange(1, self.max_words + 1))
        bounds = tf.constant(cumulative / cumulative[-1])
        drawn = fraction(draw(NGRAM_DRAW))
        sizes = 1 + tf.reduce_sum(tf.cast(drawn[..., tf.newaxis] >= bounds, tf.int32), axis=-1)
        wanted = self.number_to_choose(rows, max_predictions)
        return select_ngrams(rows, starts, draw(ORDER_DRAW), tf.minimum(sizes, self.max_words), wanted, self.max_words)


def select_ngrams(
    rows: Rows, starts: tf.Tensor, scores: tf.Tensor, ngrams: tf.Tensor, wanted: tf.Tensor, max_words: int
) -> tf.Tensor:
    """Selects n-grams of words in the order of their scores; see `NgramMasking`.

    Args:
      rows: `[examples, length]`.
      starts: which tokens begin a word, bool `[examples, length]`.
      scores: uint32 `[examples, length]`. The score of an n-gram is the score of its first token.
      ngrams: number of words of an n-gram by its first token, from 1 to `max_words`, int32 `[examples, length]`.
      wanted: number of tokens to select per example, `[examples]`.
      max_words: the largest n.

    Returns:
      bool `[examples, length]`.
    """
    words = number_words(rows, starts, scores)
    columns = tf.shape(words.sizes)[1]
    # ends[:, w]: number of tokens of the words 1 to w. Words that do not exist have size 0.
    ends = tf.pad(tf.cumsum(words.sizes, axis=1), [[0, 0], [0, max_words]], "SYMMETRIC")
    ngrams = tf.gather(ngrams, words.order, batch_dims=1)
    numbers = tf.range(columns)[tf.newaxis]

    def add_ngram(step, total, covered):
        word = words.by_score[:, step]
        before = tf.gather(ends, tf.maximum(word - 1, 0), batch_dims=1)
        room = wanted - total
        size, last = tf.zeros_like(word), word - 1
        for n in range(1, max_words + 1):
            tokens = tf.gather(ends, tf.minimum(word + n - 1, columns - 1), batch_dims=1) - before
            fits = (n <= ngrams[:, step]) & (tokens <= room) & (word > 0)
            size, last = tf.where(fits, tokens, size), tf.where(fits, word + n - 1, last)
        inside = (numbers >= word[:, tf.newaxis]) & (numbers <= last[:, tf.newaxis])
        is_free = ~tf.reduce_any(inside & covered, axis=1)
        return step + 1, total + tf.where(is_free, size, 0), covered | (inside & is_free[:, tf.newaxis])

    most = tf.reduce_max(words.word)
    *_, covered = tf.while_loop(
        lambda step, total, covered: (step < most) & tf.reduce_any(total < wanted),
        add_ngram,
        (0, tf.zeros_like(wanted), tf.zeros_like(words.sizes, tf.bool)),
        parallel_iterations=1,
    )
    return tf.gather(covered, words.word, batch_dims=1) & (words.word > 0)
