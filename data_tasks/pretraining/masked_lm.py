"""Masked language modeling: how BERT and RoBERTa choose tokens, and how they corrupt the chosen ones.

Sources: Devlin et al. 2018, section 3.1; Liu et al. 2019, section 4. Two preprocessors work in sequence. The first one
makes `inputs` with special tokens (`data_tasks.pretraining.masked_lm_inputs`, or
`data_tasks.pretraining.sentence_pairs` for pairs of sentences). `mask_inputs` then corrupts them. Both consist of
TensorFlow operations on many examples at once.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import seqio
import tensorflow as tf

from data_tasks import preprocessors
from data_tasks.feature_checks import require_lengths
from t5x_like.errors import UserError
from t5x_like.vocabularies.special_tokens import SpecialTokens, special_tokens, word_starts

MASK_RATE = 0.15
# Of the chosen tokens, these fractions become [MASK] or stay unchanged; the others become random tokens.
MASK_FRACTION, KEEP_FRACTION = 0.8, 0.1
# The feature that distinguishes copies of the same text under static masking.
DUPLICATE = "duplicate"
EXAMPLES_PER_BATCH = 64

Draw = Callable[[int], tf.Tensor]
"""Maps the number of a draw to uint32 `[examples, length]`, uniform and independent of other numbers' draws."""
ORDER_DRAW, _COUNT_DRAW, REPLACEMENT_DRAW, TOKEN_DRAW, NGRAM_DRAW = range(5)


# ---- choosing tokens -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Rows:
    """Uncorrupted examples.

    Attributes:
      tokens: int32 `[examples, length]`, 0 after the end of each example.
      counts: number of tokens per example, including special ones, int32 `[examples]`.
      special: the ids of the special tokens.
    """

    tokens: tf.Tensor
    counts: tf.Tensor
    special: SpecialTokens

    @property
    def real(self) -> tf.Tensor:
        """Which positions are not padding, bool `[examples, length]`."""
        return tf.sequence_mask(self.counts, tf.shape(self.tokens)[1])

    @property
    def text(self) -> tf.Tensor:
        """Which positions are neither padding nor [CLS] nor [SEP], bool `[examples, length]`."""
        return self.real & (self.tokens != self.special.cls) & (self.tokens != self.special.sep)


class Masking(Protocol):
    """A rule for choosing tokens and replacing them."""

    def check(self, length: int, max_predictions: int) -> None:
        """Raises a UserError if the feature lengths do not fit together."""

    def choose(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Chooses the tokens to predict, at most `max_predictions` per example.

        Returns:
          bool `[examples, length]`; or int32, how often each token is predicted, if it may be more than once.
        """

    def replacements(self, rows: Rows, chosen: tf.Tensor, draw: Draw, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Draws what replaces the chosen tokens, int32 `[examples, length]`; other positions are unused."""


def _check_rate(rate: float) -> None:
    if not 0 <= rate < 1:
        raise UserError(f"mask rate {rate}: not in [0, 1). Give a fraction of the tokens; 0 masks none.")


@dataclasses.dataclass(frozen=True)
class BertMasking:
    """BERT's masking (`create_pretraining_data.py`).

    It chooses 15 % of an example's length, at least one token and at most the length of `targets`. Special tokens count
    towards the length, but are never chosen. Random tokens come from the whole vocabulary.

    Attributes:
      rate: the fraction of tokens to choose; 0: none, so that the text stays as it is and nothing is predicted.
      whole_words: whether to choose all pieces of a word together. Words are considered in random order, and a word
        that would exceed the number of tokens is skipped.
    """

    rate: float = MASK_RATE
    whole_words: bool = False

    def __post_init__(self):
        _check_rate(self.rate)

    def check(self, length: int, max_predictions: int) -> None:
        """Accepts all lengths: `max_predictions` is only an upper limit in this recipe."""

    def choose(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Chooses the tokens to predict; see `Masking.choose`."""
        wanted = self.number_to_choose(rows, max_predictions)
        if not self.whole_words:
            return select_top(draw(ORDER_DRAW), rows.text, wanted)
        starts = tf.gather(tf.constant(word_starts(vocabulary)), rows.tokens)
        return select_words(rows, starts, draw(ORDER_DRAW), wanted)

    def number_to_choose(self, rows: Rows, max_predictions: int) -> tf.Tensor:
        """Returns the number of tokens to choose per example, `[examples]`."""
        wanted = tf.cast(tf.round(tf.cast(rows.counts, tf.float64) * self.rate), tf.int32)
        return tf.minimum(tf.maximum(wanted, 1 if self.rate else 0), max_predictions)

    def replacements(self, rows: Rows, chosen: tf.Tensor, draw: Draw, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Draws random tokens from `random_tokens`; see `Masking.replacements`."""
        return uniform_replacements(rows, draw, self.random_tokens(vocabulary, rows.special))

    def random_tokens(self, vocabulary: seqio.Vocabulary, special: SpecialTokens) -> np.ndarray:
        """Returns all ids, `[ids]`."""
        return np.arange(vocabulary.vocab_size)


BERT_MASKING = BertMasking()


@dataclasses.dataclass(frozen=True)
class RobertaMasking:
    """RoBERTa's masking (fairseq's `MaskTokens`).

    It chooses 15 % of all tokens, including special ones, rounded up or down at random so that the fraction is exact on
    average. Random tokens come from the vocabulary without its special tokens.

    Attributes:
      rate: the fraction of tokens to choose.
    """

    rate: float = MASK_RATE

    def __post_init__(self):
        _check_rate(self.rate)

    def check(self, length: int, max_predictions: int) -> None:
        """Raises a UserError if `targets` cannot hold all masked tokens."""
        if max_predictions < (most := math.ceil(self.rate * length)):
            raise UserError(
                f"TASK_FEATURE_LENGTHS: up to {most} of {length} tokens of 'inputs' are masked, but 'targets' holds "
                f"only {max_predictions}. Set targets to {most}."
            )

    def choose(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Chooses the tokens to predict; see `Masking.choose`."""
        rounding = fraction(draw(_COUNT_DRAW)[:, 0])
        wanted = tf.cast(tf.cast(rows.counts, tf.float64) * self.rate + rounding, tf.int32)
        return select_top(draw(ORDER_DRAW), rows.real, tf.minimum(wanted, max_predictions))

    def replacements(self, rows: Rows, chosen: tf.Tensor, draw: Draw, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Draws random tokens from `random_tokens`; see `Masking.replacements`."""
        return uniform_replacements(rows, draw, self.random_tokens(vocabulary, rows.special))

    def random_tokens(self, vocabulary: seqio.Vocabulary, special: SpecialTokens) -> np.ndarray:
        """Returns the ids that are neither special nor sentinels, `[ids]`."""
        others = (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id, special.cls, special.sep, special.mask)
        ids = np.arange(vocabulary.vocab_size - vocabulary.extra_ids)
        return np.setdiff1d(ids, [index for index in others if index is not None])


def fraction(draws: tf.Tensor) -> tf.Tensor:
    """Converts uint32 to float64 in [0, 1)."""
    return tf.cast(draws, tf.float64) / 2.0**32


def select_top(scores: tf.Tensor, candidates: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Selects the `wanted` candidates with the highest scores in each row, or all candidates if there are fewer.

    Args:
      scores: uint32 `[rows, length]`. Ties are broken by position.
      candidates: bool `[rows, length]`.
      wanted: number of candidates to select per row, `[rows]`.

    Returns:
      bool `[rows, length]`.
    """
    length = tf.shape(scores, tf.int64)[1]
    keys = tf.where(candidates, tf.cast(scores, tf.int64) * length + tf.range(length), -1)
    last = tf.gather(tf.sort(keys, direction="DESCENDING"), tf.maximum(wanted - 1, 0), batch_dims=1)
    return candidates & (keys >= last[:, tf.newaxis]) & (wanted[:, tf.newaxis] > 0)


class Words(NamedTuple):
    """The words of a batch of rows, numbered from 1 in each row; 0 stands for no word.

    Attributes:
      word: word of each token, int32 `[examples, length]`.
      sizes: number of tokens of each word, 0 for no word, int32 `[examples, length + 1]`.
      order: positions in the order of descending scores, the first tokens of words before all others, int32
        `[examples, length]`.
      by_score: the words whose first tokens are at these positions, and 0 after them, int32 `[examples, length]`.
    """

    word: tf.Tensor
    sizes: tf.Tensor
    order: tf.Tensor
    by_score: tf.Tensor


def number_words(rows: Rows, starts: tf.Tensor, scores: tf.Tensor) -> Words:
    """Divides rows into words; see `select_words` for the arguments."""
    text = rows.text
    first = text & (starts | ~tf.pad(text, [[0, 0], [1, 0]])[:, :-1])
    word = tf.where(text, tf.cumsum(tf.cast(first, tf.int32), axis=1), 0)
    columns = tf.shape(word)[1] + 1
    sizes = tf.math.bincount(word, tf.cast(text, tf.int32), minlength=columns, maxlength=columns, axis=-1)
    order = tf.argsort(tf.where(first, tf.cast(scores, tf.int64), -1), axis=1, direction="DESCENDING", stable=True)
    return Words(word, sizes, order, tf.gather(tf.where(first, word, 0), order, batch_dims=1))


def select_words(rows: Rows, starts: tf.Tensor, scores: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Selects words in the order of their scores until `wanted` tokens are selected or no further word fits.

    Args:
      rows: `[examples, length]`. A word never extends over a special token.
      starts: which tokens begin a word, bool `[examples, length]`.
      scores: uint32 `[examples, length]`. The score of a word is the score of its first token.
      wanted: number of tokens to select per example, `[examples]`.

    Returns:
      bool `[examples, length]`.
    """
    words = number_words(rows, starts, scores)
    sizes = tf.gather(words.sizes, words.by_score, batch_dims=1)

    def add_word(step, total, chosen):
        size = sizes[:, step]
        fits = (size > 0) & (total + size <= wanted)
        total += tf.where(fits, size, 0)
        return step + 1, total, chosen | (fits[:, tf.newaxis] & (words.word == words.by_score[:, step, tf.newaxis]))

    most = tf.reduce_max(words.word)
    *_, chosen = tf.while_loop(
        lambda step, total, chosen: (step < most) & tf.reduce_any(total < wanted),
        add_word,
        (0, tf.zeros_like(wanted), tf.zeros_like(rows.text)),
        parallel_iterations=1,
    )
    return chosen


# ---- corruption ------------------------------------------------------------------------------------------------------


def mixed_replacements(rows: Rows, choices: tf.Tensor, random_tokens: tf.Tensor) -> tf.Tensor:
    """Replaces 80 % of the tokens by the mask and 10 % by random tokens; the other 10 % stay unchanged.

    Args:
      rows: `[examples, length]`.
      choices: what happens to each token, uniform uint32 `[examples, length]`.
      random_tokens: int32 `[examples, length]`.

    Returns:
      int32 `[examples, length]`.
    """
    choice = fraction(choices)
    unmasked = tf.where(choice < MASK_FRACTION + KEEP_FRACTION, rows.tokens, random_tokens)
    return tf.where(choice < MASK_FRACTION, rows.special.mask, unmasked)


def uniform_replacements(rows: Rows, draw: Draw, ids: np.ndarray) -> tf.Tensor:
    """Returns `mixed_replacements` of each token by itself, with random tokens from `ids` `[ids]`."""
    drawn = tf.gather(tf.constant(ids, tf.int32), tf.cast(draw(TOKEN_DRAW), tf.int64) % len(ids))
    return mixed_replacements(rows, draw(REPLACEMENT_DRAW), drawn)


def predictions(tokens: tf.Tensor, chosen: tf.Tensor, max_predictions: int) -> dict[str, tf.Tensor]:
    """Gathers the tokens to predict and their positions.

    Args:
      tokens: uncorrupted tokens, int32 `[examples, length]`.
      chosen: which tokens to predict, or how often, bool or int32 `[examples, length]`.
      max_predictions: number of columns; at least the number of predictions of any example.

    Returns:
      `targets` and `masked_positions` in ascending order, int32 `[examples, max_predictions]`, padded with 0.
    """
    counts = tf.cast(chosen, tf.int32)
    lengths, repeats = tf.reduce_sum(counts, axis=1), tf.reshape(counts, [-1])
    positions = tf.broadcast_to(tf.range(tf.shape(tokens)[1]), tf.shape(tokens))
    return {
        name: tf.RaggedTensor.from_row_lengths(tf.repeat(tf.reshape(values, [-1]), repeats), lengths).to_tensor(
            shape=[None, max_predictions]
        )
        for name, values in (("targets", tokens), ("masked_positions", positions))
    }


def mask_inputs(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    masking: Masking = BERT_MASKING,
    static: bool = False,
    special: SpecialTokens | None = None,
    examples_per_batch: int = EXAMPLES_PER_BATCH,
) -> tf.data.Dataset:
    """Corrupts `inputs`. All other features are passed through.

    Args:
      ds: examples with uncorrupted `inputs` including special tokens, int32 `[any length]`, optionally padded with 0.
      sequence_length: length of `inputs` and of `targets`, the maximum number of masked tokens.
      output_features: `inputs`, whose vocabulary `masking` reads.
      masking: the rule for choosing tokens.
      static: whether the corruption depends only on `inputs` and the feature `duplicate` (see `duplicate_documents`),
        instead of differing each time.
      special: the special tokens. Default: the tokens of the vocabulary.
      examples_per_batch: number of examples corrupted together.

    Returns:
      Examples with `inputs`, the chosen tokens as `targets`, and their positions in `inputs` as `masked_positions`,
      ascending and padded with 0.

    Raises:
      UserError: a length is missing, the lengths do not fit together, or the vocabulary has no special tokens.
    """
    lengths = require_lengths("masked LM", sequence_length, "inputs", "targets")
    length, max_predictions = lengths["inputs"], lengths["targets"]
    masking.check(length, max_predictions)
    vocabulary = output_features["inputs"].vocabulary
    special = special or special_tokens(vocabulary)

    def masked(batch, seed=None):
        batch = dict(batch)
        tokens = batch["inputs"][:, :length]
        tokens = tf.pad(tokens, [[0, 0], [0, length - tf.shape(tokens)[1]]])
        counts = tf.reduce_max(tf.cast(tokens != 0, tf.int32) * tf.range(1, length + 1), axis=1)
        duplicate = batch.pop(DUPLICATE, tf.zeros_like(counts))
        draw = hashed_draws(tokens, duplicate) if seed is None else seeded_draws(tf.shape(tokens), seed)
        rows = Rows(tokens, counts, special)
        chosen = masking.choose(rows, draw, max_predictions, vocabulary)
        inputs = tf.where(tf.cast(chosen, tf.bool), masking.replacements(rows, chosen, draw, vocabulary), tokens)
        number = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)
        features = {"inputs": (inputs, counts, length)} | {
            name: (values, number, max_predictions)
            for name, values in predictions(tokens, chosen, max_predictions).items()
        }
        return batch | {
            name: preprocessors.pad_for_unbatch(tf.RaggedTensor.from_tensor(values, lengths=n), most, vocabulary)
            for name, (values, n, most) in features.items()
        }

    ds = ds.padded_batch(examples_per_batch)
    if static:
        return ds.map(masked, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    return seqio.map_over_dataset(num_seeds=1)(masked)(ds).unbatch()


def seeded_draws(shape: tf.Tensor, seed: tf.Tensor) -> Draw:
    """Makes draws from a stateless seed `[2]`."""

    def draw(number: int) -> tf.Tensor:
        key = tf.random.experimental.stateless_fold_in(seed, number)
        return tf.random.stateless_uniform(shape, key, minval=None, maxval=None, dtype=tf.uint32)

    return draw


def hashed_draws(tokens: tf.Tensor, duplicate: tf.Tensor) -> Draw:
    """Makes draws that are hashes of a whole row, its duplicate number, the position and the number of the draw.

    Args:
      tokens: int32 `[examples, length]`.
      duplicate: int32 `[examples]`.

    Returns:
      The draws, which do not depend on a seed.
    """
    examples, length = tf.unstack(tf.shape(tokens))
    rows = _hash(tf.concat([tokens, duplicate[:, tf.newaxis]], axis=1))

    def draw(number: int) -> tf.Tensor:
        positions = tf.range(examples * length) % length
        keys = tf.stack([tf.repeat(rows[:, 0], length), tf.repeat(rows[:, 1], length), positions], axis=1)
        hashes = _hash(tf.pad(keys, [[0, 0], [0, 1]], constant_values=number))
        return tf.reshape(tf.bitcast(hashes[:, 0], tf.uint32), [examples, length])

    return draw


def _hash(values: tf.Tensor) -> tf.Tensor:
    """Hashes each row of int32 `[rows, columns]` to 64 bits, as int32 `[rows, 2]`."""
    return tf.bitcast(tf.reshape(tf.fingerprint(values), [-1, 2, 4]), tf.int32)
