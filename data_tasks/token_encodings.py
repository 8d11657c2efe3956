"""What noise makes of a row of tokens: T5's encodings of inputs and targets (Raffel et al. 2020, section 3.3).

An encoding takes `Rows`, the ids to put in, and a stateless seed `[2]`, and gives `[rows, (length)]`. Those of inputs
change the noise; those of targets leave it and change the rest, which is the same encoding of the opposite mask.
"""

import dataclasses
from collections.abc import Callable

import seqio
import tensorflow as tf

FIRST_TEXT_ID = 3
"""Ids below it are padding, EOS and unknown, in every vocabulary that T5's recipes are made for."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of tokens and which of them are noise.

    Attributes:
      tokens: int32 `[rows, width]`.
      noise: bool `[rows, width]`, False for padding.
      real: bool `[rows, width]`, False for padding, which comes last.
    """

    tokens: tf.Tensor
    noise: tf.Tensor
    real: tf.Tensor

    def inverted(self) -> "Rows":
        """The same tokens, with noise where there was none."""
        return dataclasses.replace(self, noise=self.real & ~self.noise)


@dataclasses.dataclass(frozen=True)
class Ids:
    """Which ids stand for what.

    Attributes:
      sentinel: the first sentinel; further ones descend from it.
      text_ids: the first id of text, and the one after the last.
    """

    sentinel: int
    text_ids: tuple[int, int]

    @classmethod
    def from_vocabulary(cls, vocabulary: seqio.Vocabulary) -> "Ids":
        """Those of a vocabulary whose last `extra_ids` are sentinels."""
        size = vocabulary.vocab_size
        return cls(sentinel=size - 1, text_ids=(FIRST_TEXT_ID, size - vocabulary.extra_ids))


Encoding = Callable[[Rows, Ids, tf.Tensor], tf.RaggedTensor]


def full(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """The tokens as they are."""
    del ids, seed
    return tf.ragged.boolean_mask(rows.tokens, rows.real)


def noise_token_to_sentinel(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """The same sentinel for each token of noise: a mask."""
    del seed
    return tf.ragged.boolean_mask(tf.where(rows.noise, ids.sentinel, rows.tokens), rows.real)


def noise_token_to_random_token(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Any token of the vocabulary that is text for each token of noise."""
    return tf.ragged.boolean_mask(tf.where(rows.noise, _random_tokens(rows, ids, seed), rows.tokens), rows.real)


def noise_token_to_random_token_or_sentinel(
    rows: Rows, ids: Ids, seed: tf.Tensor, random_prob: float = 0.1
) -> tf.RaggedTensor:
    """For each token of noise a random token with probability `random_prob`, else the sentinel; as in BERT."""
    which_seed, token_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    is_random = tf.random.stateless_uniform(tf.shape(rows.tokens), which_seed) < random_prob
    instead = tf.where(is_random, _random_tokens(rows, ids, token_seed), ids.sentinel)
    return tf.ragged.boolean_mask(tf.where(rows.noise, instead, rows.tokens), rows.real)


def noise_token_to_gathered_token(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Any token of the same row for each token of noise."""
    del ids
    lengths = tf.reduce_sum(tf.cast(rows.real, tf.float64), axis=1, keepdims=True)
    fractions = tf.random.stateless_uniform(tf.shape(rows.tokens), seed, dtype=tf.float64)
    gathered = tf.gather(rows.tokens, tf.cast(fractions * lengths, tf.int32), batch_dims=1)
    return tf.ragged.boolean_mask(tf.where(rows.noise, gathered, rows.tokens), rows.real)


def permute_noise_tokens(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """The tokens of noise change places with one another."""
    del ids
    drawn = tf.random.stateless_uniform(tf.shape(rows.tokens), seed)
    order = tf.argsort(tf.where(rows.noise, drawn, 2.0), axis=1)  # those of noise first, in random order
    permuted = tf.gather(rows.tokens, order, batch_dims=1)
    which = tf.cumsum(tf.cast(rows.noise, tf.int32), axis=1, exclusive=True)
    which = tf.where(rows.noise, which, 0)
    moved = tf.where(rows.noise, tf.gather(permuted, which, batch_dims=1), rows.tokens)
    return tf.ragged.boolean_mask(moved, rows.real)


def drop_noise_tokens(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """The tokens without the noise."""
    del ids, seed
    return tf.ragged.boolean_mask(rows.tokens, rows.real & ~rows.noise)


def noise_span_to_sentinel(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """The same sentinel for each run of noise."""
    del seed
    begins = span_starts(rows.noise)
    return tf.ragged.boolean_mask(tf.where(begins, ids.sentinel, rows.tokens), rows.real & (begins | ~rows.noise))


def noise_span_to_unique_sentinel(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """A sentinel for each run of noise: the first one for the first run of a row, then descending."""
    del seed
    begins = span_starts(rows.noise)
    sentinels = ids.sentinel + 1 - tf.cumsum(tf.cast(begins, tf.int32), axis=1)
    return tf.ragged.boolean_mask(tf.where(begins, sentinels, rows.tokens), rows.real & (begins | ~rows.noise))


def drop_nonnoise_tokens(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """The noise alone."""
    return drop_noise_tokens(rows.inverted(), ids, seed)


def nonnoise_span_to_sentinel(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """The noise, and the same sentinel for each run of what is not noise."""
    return noise_span_to_sentinel(rows.inverted(), ids, seed)


def nonnoise_span_to_unique_sentinel(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """The noise, and a sentinel for each run of what is not noise.

    Where a row begins without noise, that is the sentinel which stands for the next run of noise in the inputs; where
    it ends without noise too, one more sentinel ends it.
    """
    return noise_span_to_unique_sentinel(rows.inverted(), ids, seed)


def span_starts(noise: tf.Tensor) -> tf.Tensor:
    """Where runs of noise begin, bool `[rows, width]`."""
    return noise & ~tf.pad(noise, [[0, 0], [1, 0]])[:, :-1]


def limit_spans(noise: tf.Tensor, most: int) -> tf.Tensor:
    """The noise of the first `most` runs of each row."""
    return noise & (tf.cumsum(tf.cast(span_starts(noise), tf.int32), axis=1) <= most)


def _random_tokens(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.Tensor:
    first, end = ids.text_ids
    return tf.random.stateless_uniform(tf.shape(rows.tokens), seed, minval=first, maxval=end, dtype=tf.int32)
