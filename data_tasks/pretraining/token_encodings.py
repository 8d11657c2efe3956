"""T5's encodings of noised token rows as inputs and targets (Raffel et al. 2020, section 3.3).

An encoding maps `Rows`, the ids to insert and a stateless seed `[2]` to ragged rows `[rows, (length)]`. Encodings of
inputs replace the noise. Encodings of targets keep the noise and replace the other tokens: they are the encodings of
inputs with the inverted noise mask.
"""

import dataclasses
from collections.abc import Callable

import seqio
import tensorflow as tf

from data_tasks.preprocessors import sentinel_of_span
from t5x_like.vocabularies.sentinels import sentinel_ids

FIRST_TEXT_ID = 3
"""Lower ids are padding, EOS and unknown in all vocabularies that T5's recipes support."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of tokens and their noise masks.

    Attributes:
      tokens: int32 `[rows, width]`.
      noise: bool `[rows, width]`, False for padding.
      real: which tokens are not padding, bool `[rows, width]`. Padding is at the end.
    """

    tokens: tf.Tensor
    noise: tf.Tensor
    real: tf.Tensor

    def inverted(self) -> "Rows":
        """Returns the same tokens with the inverted noise mask."""
        return dataclasses.replace(self, noise=self.real & ~self.noise)


@dataclasses.dataclass(frozen=True)
class Ids:
    """The ids that encodings insert.

    Attributes:
      sentinels: the ids of the sentinels, of which the first is the mask.
      text_ids: the range of text ids: the first one, and the one after the last.
    """

    sentinels: range
    text_ids: tuple[int, int]

    @property
    def sentinel(self) -> int:
        """The first sentinel."""
        return self.sentinels.start

    @classmethod
    def from_vocabulary(cls, vocabulary: seqio.Vocabulary) -> "Ids":
        """Returns the ids for a vocabulary whose last `extra_ids` ids are not text."""
        return cls(sentinel_ids(vocabulary), text_ids=(FIRST_TEXT_ID, vocabulary.vocab_size - vocabulary.extra_ids))


Encoding = Callable[[Rows, Ids, tf.Tensor], tf.RaggedTensor]


def full(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Keeps all tokens."""
    del ids, seed
    return tf.ragged.boolean_mask(rows.tokens, rows.real)


def noise_token_to_sentinel(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Replaces each noise token by the same sentinel, as a mask."""
    del seed
    return tf.ragged.boolean_mask(tf.where(rows.noise, ids.sentinel, rows.tokens), rows.real)


def noise_token_to_random_token(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Replaces each noise token by a random text token of the vocabulary."""
    return tf.ragged.boolean_mask(tf.where(rows.noise, _random_tokens(rows, ids, seed), rows.tokens), rows.real)


def noise_token_to_random_token_or_sentinel(
    rows: Rows, ids: Ids, seed: tf.Tensor, random_prob: float = 0.1
) -> tf.RaggedTensor:
    """Replaces each noise token by a random token with probability `random_prob`, else by a sentinel, as in BERT."""
    which_seed, token_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    is_random = tf.random.stateless_uniform(tf.shape(rows.tokens), which_seed) < random_prob
    replacement = tf.where(is_random, _random_tokens(rows, ids, token_seed), ids.sentinel)
    return tf.ragged.boolean_mask(tf.where(rows.noise, replacement, rows.tokens), rows.real)


def noise_token_to_gathered_token(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Replaces each noise token by a random token of the same row."""
    del ids
    lengths = tf.reduce_sum(tf.cast(rows.real, tf.float64), axis=1, keepdims=True)
    fractions = tf.random.stateless_uniform(tf.shape(rows.tokens), seed, dtype=tf.float64)
    gathered = tf.gather(rows.tokens, tf.cast(fractions * lengths, tf.int32), batch_dims=1)
    return tf.ragged.boolean_mask(tf.where(rows.noise, gathered, rows.tokens), rows.real)


def permute_noise_tokens(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Permutes the noise tokens of each row."""
    del ids
    drawn = tf.random.stateless_uniform(tf.shape(rows.tokens), seed)
    order = tf.argsort(tf.where(rows.noise, drawn, 2.0), axis=1)  # noise tokens first, in random order
    permuted = tf.gather(rows.tokens, order, batch_dims=1)
    index = tf.cumsum(tf.cast(rows.noise, tf.int32), axis=1, exclusive=True)
    index = tf.where(rows.noise, index, 0)
    moved = tf.where(rows.noise, tf.gather(permuted, index, batch_dims=1), rows.tokens)
    return tf.ragged.boolean_mask(moved, rows.real)


def drop_noise_tokens(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Drops the noise tokens."""
    del ids, seed
    return tf.ragged.boolean_mask(rows.tokens, rows.real & ~rows.noise)


def noise_span_to_sentinel(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Replaces each noise span by the same sentinel."""
    del seed
    starts = span_starts(rows.noise)
    return tf.ragged.boolean_mask(tf.where(starts, ids.sentinel, rows.tokens), rows.real & (starts | ~rows.noise))


def noise_span_to_unique_sentinel(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Replaces each noise span by a unique sentinel: `ids.sentinels`, in order from the first span of a row."""
    del seed
    starts = span_starts(rows.noise)
    sentinels = sentinel_of_span(starts, ids.sentinels)
    return tf.ragged.boolean_mask(tf.where(starts, sentinels, rows.tokens), rows.real & (starts | ~rows.noise))


def drop_nonnoise_tokens(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Keeps only the noise tokens."""
    return drop_noise_tokens(rows.inverted(), ids, seed)


def nonnoise_span_to_sentinel(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Keeps the noise and replaces each span of other tokens by the same sentinel."""
    return noise_span_to_sentinel(rows.inverted(), ids, seed)


def nonnoise_span_to_unique_sentinel(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.RaggedTensor:
    """Keeps the noise and replaces each span of other tokens by a unique sentinel.

    If a row begins without noise, each sentinel is the one that replaces the following noise span in the inputs. If the
    row also ends without noise, one more sentinel ends the targets.
    """
    return noise_span_to_unique_sentinel(rows.inverted(), ids, seed)


def span_starts(noise: tf.Tensor) -> tf.Tensor:
    """Returns where noise spans begin, bool `[rows, width]`."""
    return noise & ~tf.pad(noise, [[0, 0], [1, 0]])[:, :-1]


def limit_spans(noise: tf.Tensor, most: int) -> tf.Tensor:
    """Keeps only the first `most` noise spans of each row."""
    return noise & (tf.cumsum(tf.cast(span_starts(noise), tf.int32), axis=1) <= most)


def _random_tokens(rows: Rows, ids: Ids, seed: tf.Tensor) -> tf.Tensor:
    first, end = ids.text_ids
    return tf.random.stateless_uniform(tf.shape(rows.tokens), seed, minval=first, maxval=end, dtype=tf.int32)
