"""Masked language models: BERT's and RoBERTa's ways to choose tokens, and what becomes of those (Devlin et al. 2018,
section 3.1; Liu et al. 2019, section 4).

Two preprocessors follow one another: one makes `inputs` with their special tokens (`data_tasks.masked_lm_inputs`, or
`data_tasks.sentence_pairs` for pairs of sentences), `mask_inputs` corrupts them. All is done by TensorFlow operations
on many examples at once.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import seqio
import tensorflow as tf

from data_tasks import preprocessors
from t5x_like.errors import UserError

MASK_RATE = 0.15
# Of the chosen tokens: so many become [MASK], so many stay, the others become random ones.
MASK_FRACTION, KEEP_FRACTION = 0.8, 0.1
# The feature that tells apart the examples of the same text in static masking.
DUPLICATE = "duplicate"
EXAMPLES_PER_BATCH = 64

Draw = Callable[[int], tf.Tensor]
"""The number of a draw -> uint32 `[examples, length]`, uniform, independent of other numbers' draws."""
_ORDER, _COUNT, _REPLACEMENT, _TOKEN = range(4)


# ---- what a vocabulary says ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """The ids of the tokens that stand for no text.

    Attributes:
      cls: what an example begins with ([CLS], <s>).
      sep: what a segment ends with ([SEP], </s>).
      mask: what stands in place of a token to be predicted ([MASK], <mask>).
    """

    cls: int
    sep: int
    mask: int


def special_tokens(vocabulary: seqio.Vocabulary) -> SpecialTokens:
    """The special tokens of a vocabulary.

    They are its attributes `cls_id`, `sep_id`, `mask_id`, or its pieces [CLS], [SEP], [MASK]; one that has neither
    lends its last sentinels: the last id is the mask, the one before it [CLS], the one before that [SEP].

    Raises:
      UserError: it has nothing of that.
    """
    names = [f.name for f in dataclasses.fields(SpecialTokens)]
    if all(hasattr(vocabulary, f"{name}_id") for name in names):
        return SpecialTokens(**{name: getattr(vocabulary, f"{name}_id") for name in names})
    model = getattr(vocabulary, "tokenizer", None)
    if hasattr(model, "PieceToId"):
        ids = {name: model.PieceToId(f"[{name.upper()}]") for name in names}
        if all(model.IdToPiece(index) == f"[{name.upper()}]" for name, index in ids.items()):
            return SpecialTokens(**ids)
    if vocabulary.extra_ids < len(names):
        raise UserError(
            f"{type(vocabulary).__name__} has neither [CLS], [SEP] and [MASK] nor three sentinels to stand for them: "
            "make it with extra_ids=3 or more, or use another vocabulary"
        )
    last = vocabulary.vocab_size - 1
    return SpecialTokens(mask=last, cls=last - 1, sep=last - 2)


def word_starts(vocabulary: seqio.Vocabulary) -> np.ndarray:
    """Which ids begin a word, bool `[vocab_size]`.

    They are the vocabulary's attribute `word_starts`; in a SentencePiece model the pieces that begin with white space
    (`▁`), and all that are no text.

    Raises:
      UserError: the vocabulary does not know its words.
    """
    if hasattr(vocabulary, "word_starts"):
        return np.asarray(vocabulary.word_starts, bool)
    model = getattr(vocabulary, "tokenizer", None)
    if not hasattr(model, "IdToPiece"):
        raise UserError(
            f"whole words cannot be masked: {type(vocabulary).__name__} does not say which pieces begin a word (a "
            "SentencePiece model does, and a vocabulary with the attribute `word_starts`)"
        )
    starts = np.ones(vocabulary.vocab_size, bool)
    for index in range(model.GetPieceSize()):
        piece = model.IdToPiece(index)
        is_text = not (model.IsControl(index) or model.IsUnknown(index))
        starts[index] = not is_text or piece[:1] == "▁" or piece[:1].isspace()
    return starts


# ---- which tokens are chosen -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Rows:
    """Uncorrupted examples.

    Attributes:
      tokens: int32 `[examples, length]`, 0 after the end.
      counts: tokens of each, special ones included, int32 `[examples]`.
      special: the ids of the special ones.
    """

    tokens: tf.Tensor
    counts: tf.Tensor
    special: SpecialTokens

    @property
    def real(self) -> tf.Tensor:
        """What is no padding, bool `[examples, length]`."""
        return tf.sequence_mask(self.counts, tf.shape(self.tokens)[1])

    @property
    def text(self) -> tf.Tensor:
        """What is neither padding nor [CLS] nor [SEP], bool `[examples, length]`."""
        return self.real & (self.tokens != self.special.cls) & (self.tokens != self.special.sep)


class Masking(Protocol):
    """How tokens are chosen, and which random words there are."""

    def check(self, length: int, max_predictions: int) -> None:
        """Refuses lengths that do not fit together."""

    def chosen(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Which tokens are to be predicted, bool `[examples, length]`, at most `max_predictions` an example."""

    def random_tokens(self, vocabulary: seqio.Vocabulary, special: SpecialTokens) -> np.ndarray:
        """The ids that random words are drawn from, `[words]`."""


@dataclasses.dataclass(frozen=True)
class BertMasking:
    """BERT's: 15 % of an example's length, special tokens counted but never chosen, at least one and at most as many as
    `targets` has room for; random words from the whole vocabulary (`create_pretraining_data.py`).

    Attributes:
      rate: the share of tokens that is chosen.
      whole_words: whether all pieces of a word are chosen together: words are taken in random order, one that would
        make too many is left out.
    """

    rate: float = MASK_RATE
    whole_words: bool = False

    def check(self, length: int, max_predictions: int) -> None:
        """All lengths fit: `max_predictions` is a limit in this recipe."""

    def chosen(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        wanted = tf.cast(tf.round(tf.cast(rows.counts, tf.float64) * self.rate), tf.int32)
        wanted = tf.minimum(tf.maximum(wanted, 1), max_predictions)
        if not self.whole_words:
            return select_top(draw(_ORDER), rows.text, wanted)
        return whole_words(rows, tf.gather(tf.constant(word_starts(vocabulary)), rows.tokens), draw(_ORDER), wanted)

    def random_tokens(self, vocabulary: seqio.Vocabulary, special: SpecialTokens) -> np.ndarray:
        return np.arange(vocabulary.vocab_size)


BERT_MASKING = BertMasking()


@dataclasses.dataclass(frozen=True)
class RobertaMasking:
    """RoBERTa's (fairseq's `MaskTokens`): 15 % of all tokens, special ones included, rounded up or down at random so
    that the share is exact on average; random words from the vocabulary without its special tokens.

    Attributes:
      rate: the share of tokens that is chosen.
    """

    rate: float = MASK_RATE

    def check(self, length: int, max_predictions: int) -> None:
        if max_predictions < (most := math.ceil(self.rate * length)):
            raise UserError(
                f"TASK_FEATURE_LENGTHS: of {length} tokens of 'inputs' up to {most} are masked, but 'targets' has room "
                f"for {max_predictions}: set targets to {most}"
            )

    def chosen(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        rounding = fraction(draw(_COUNT)[:, 0])
        wanted = tf.cast(tf.cast(rows.counts, tf.float64) * self.rate + rounding, tf.int32)
        return select_top(draw(_ORDER), rows.real, tf.minimum(wanted, max_predictions))

    def random_tokens(self, vocabulary: seqio.Vocabulary, special: SpecialTokens) -> np.ndarray:
        others = (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id, special.cls, special.sep, special.mask)
        words = np.arange(vocabulary.vocab_size - vocabulary.extra_ids)
        return np.setdiff1d(words, [index for index in others if index is not None])


def fraction(draws: tf.Tensor) -> tf.Tensor:
    """uint32 as float64 in [0, 1)."""
    return tf.cast(draws, tf.float64) / 2.0**32


def select_top(scores: tf.Tensor, candidates: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """The candidates with the highest scores, as many of each row as are wanted or as there are.

    Args:
      scores: uint32 `[rows, length]`; equal ones are told apart by their place.
      candidates: bool `[rows, length]`.
      wanted: `[rows]`.

    Returns:
      bool `[rows, length]`.
    """
    length = tf.shape(scores, tf.int64)[1]
    keys = tf.where(candidates, tf.cast(scores, tf.int64) * length + tf.range(length), -1)
    last = tf.gather(tf.sort(keys, direction="DESCENDING"), tf.maximum(wanted - 1, 0), batch_dims=1)
    return candidates & (keys >= last[:, tf.newaxis]) & (wanted[:, tf.newaxis] > 0)


def whole_words(rows: Rows, starts: tf.Tensor, scores: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Words taken in the order of their scores until as many tokens as are wanted have been, or none fits any more.

    Args:
      rows: `[examples, length]`; a word never goes over a special token.
      starts: which tokens begin a word, bool `[examples, length]`.
      scores: uint32 `[examples, length]`; that of a word is its first token's.
      wanted: tokens of each example, `[examples]`.

    Returns:
      bool `[examples, length]`.
    """
    text = rows.text
    first = text & (starts | ~tf.pad(text, [[0, 0], [1, 0]])[:, :-1])
    word = tf.where(text, tf.cumsum(tf.cast(first, tf.int32), axis=1), 0)  # numbered from 1 on; 0 is none
    columns = tf.shape(word)[1] + 1
    sizes = tf.math.bincount(word, tf.cast(text, tf.int32), minlength=columns, maxlength=columns, axis=-1)
    # The words by score, and behind the last one zeros, which stand for no word and a size of 0.
    order = tf.argsort(tf.where(first, tf.cast(scores, tf.int64), -1), axis=1, direction="DESCENDING", stable=True)
    words = tf.gather(tf.where(first, word, 0), order, batch_dims=1)
    sizes = tf.gather(sizes, words, batch_dims=1)

    def add_word(step, total, chosen):
        size = sizes[:, step]
        takes = (size > 0) & (total + size <= wanted)
        total += tf.where(takes, size, 0)
        return step + 1, total, chosen | (takes[:, tf.newaxis] & (word == words[:, step, tf.newaxis]))

    most = tf.reduce_max(word)
    *_, chosen = tf.while_loop(
        lambda step, total, chosen: (step < most) & tf.reduce_any(total < wanted),
        add_word,
        (0, tf.zeros_like(wanted), tf.zeros_like(text)),
        parallel_iterations=1,
    )
    return chosen


# ---- what becomes of them --------------------------------------------------------------------------------------------


def corrupt(tokens: tf.Tensor, chosen: tf.Tensor, draw: Draw, mask_id: int, random_tokens: tf.Tensor) -> tf.Tensor:
    """Of the chosen tokens 80 % become the mask, 10 % stay and 10 % become random words.

    Args:
      tokens: int32 `[examples, length]`.
      chosen: bool `[examples, length]`.
      draw: what chance decides.
      mask_id: the mask.
      random_tokens: the ids of random words, drawn uniformly, int32 `[words]`.

    Returns:
      int32 `[examples, length]`.
    """
    replacement = fraction(draw(_REPLACEMENT))
    words = tf.gather(random_tokens, tf.cast(draw(_TOKEN), tf.int64) % tf.size(random_tokens, tf.int64))
    replaced = tf.where(
        replacement < MASK_FRACTION, mask_id, tf.where(replacement < MASK_FRACTION + KEEP_FRACTION, tokens, words)
    )
    return tf.where(chosen, replaced, tokens)


def predictions(tokens: tf.Tensor, chosen: tf.Tensor, max_predictions: int) -> dict[str, tf.Tensor]:
    """What is to be predicted, and where.

    Args:
      tokens: uncorrupted, int32 `[examples, length]`.
      chosen: bool `[examples, length]`.
      max_predictions: columns; no example has more chosen tokens.

    Returns:
      `targets` and `masked_positions`, ascending, int32 `[examples, max_predictions]`, 0 after the last one.
    """
    places = tf.broadcast_to(tf.range(tf.shape(tokens)[1]), tf.shape(tokens))
    return {
        name: tf.ragged.boolean_mask(values, chosen).to_tensor(shape=[None, max_predictions])
        for name, values in (("targets", tokens), ("masked_positions", places))
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
    """Corrupts `inputs`; every other feature goes with its example as it is.

    Args:
      ds: examples with `inputs`, uncorrupted and with their special tokens, int32 `[any length]`, perhaps with zeros at
        the end.
      sequence_length: tokens of `inputs`, and of `targets`: how many of them may be masked.
      output_features: `inputs`, whose vocabulary random words are drawn from.
      masking: which tokens are chosen.
      static: whether the corruption depends on `inputs` and the feature `duplicate` (see `duplicates`) alone, in place
        of being another one each time.
      special: the special tokens; the vocabulary's by default.
      examples_per_batch: how many examples are corrupted at once.

    Returns:
      Examples with `inputs`, `targets`, the tokens that were chosen, and `masked_positions`, where in `inputs` they
      were: ascending, 0 after the last one.

    Raises:
      UserError: a length is missing or they do not fit together; the vocabulary has no special tokens.
    """
    if sequence_length is None or not {"inputs", "targets"} <= set(sequence_length):
        raise UserError(f"a masked LM needs TASK_FEATURE_LENGTHS of 'inputs' and 'targets', not {sequence_length}")
    length, max_predictions = sequence_length["inputs"], sequence_length["targets"]
    masking.check(length, max_predictions)
    vocabulary = output_features["inputs"].vocabulary
    special = special or special_tokens(vocabulary)
    random_tokens = masking.random_tokens(vocabulary, special).astype(np.int32)

    def masked(batch, seed=None):
        batch = dict(batch)
        tokens = batch["inputs"][:, :length]
        tokens = tf.pad(tokens, [[0, 0], [0, length - tf.shape(tokens)[1]]])
        counts = tf.reduce_max(tf.cast(tokens != 0, tf.int32) * tf.range(1, length + 1), axis=1)
        duplicate = batch.pop(DUPLICATE, tf.zeros_like(counts))
        draw = hashed_draws(tokens, duplicate) if seed is None else seeded_draws(tf.shape(tokens), seed)
        chosen = masking.chosen(Rows(tokens, counts, special), draw, max_predictions, vocabulary)
        inputs = corrupt(tokens, chosen, draw, special.mask, tf.constant(random_tokens))
        number = tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)
        made = {"inputs": (inputs, counts, length)} | {
            name: (values, number, max_predictions)
            for name, values in predictions(tokens, chosen, max_predictions).items()
        }
        return batch | {
            name: preprocessors.pad_for_unbatch(tf.RaggedTensor.from_tensor(values, lengths=n), most, vocabulary)
            for name, (values, n, most) in made.items()
        }

    ds = ds.padded_batch(examples_per_batch)
    if static:
        return ds.map(masked, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    return seqio.map_over_dataset(num_seeds=1)(masked)(ds).unbatch()


def seeded_draws(shape: tf.Tensor, seed: tf.Tensor) -> Draw:
    """Draws by a stateless seed `[2]`."""

    def draw(number: int) -> tf.Tensor:
        key = tf.random.experimental.stateless_fold_in(seed, number)
        return tf.random.stateless_uniform(shape, key, minval=None, maxval=None, dtype=tf.uint32)

    return draw


def hashed_draws(tokens: tf.Tensor, duplicate: tf.Tensor) -> Draw:
    """Draws that are hashes of a whole row, its duplicate's number, the place and the draw.

    Args:
      tokens: int32 `[examples, length]`.
      duplicate: int32 `[examples]`.
    """
    examples, length = tf.unstack(tf.shape(tokens))
    rows = _hash(tf.concat([tokens, duplicate[:, tf.newaxis]], axis=1))

    def draw(number: int) -> tf.Tensor:
        places = tf.range(examples * length) % length
        keys = tf.stack([tf.repeat(rows[:, 0], length), tf.repeat(rows[:, 1], length), places], axis=1)
        hashes = _hash(tf.pad(keys, [[0, 0], [0, 1]], constant_values=number))
        return tf.reshape(tf.bitcast(hashes[:, 0], tf.uint32), [examples, length])

    return draw


def _hash(values: tf.Tensor) -> tf.Tensor:
    """64 bits for each row of int32 `[rows, columns]`, as int32 `[rows, 2]`."""
    return tf.bitcast(tf.reshape(tf.fingerprint(values), [-1, 2, 4]), tf.int32)
