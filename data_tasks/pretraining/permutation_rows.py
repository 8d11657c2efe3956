"""Rows of XLNet's pretraining: old tokens, and two segments that follow them (`data_utils.py` of the released code).

Documents are joined to streams. Row n of a stream begins n · r tokens after its start: it has r old tokens, then
`[A, SEP, B, SEP, CLS]`. So each row reads the r tokens after those that the memory has from the row before.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import seqio
import tensorflow as tf

from data_tasks.feature_checks import require_lengths
from data_tasks.pretraining.permutations import permutation_ranks
from data_tasks.pretraining.span_sampling import sample_targets, starts_of_pieces
from t5x_like.data.specs import TOKENS_PER_TARGET
from t5x_like.errors import UserError
from t5x_like.vocabularies.special_tokens import SpecialTokens, special_tokens

# Documents that are joined to a stream.
DOCUMENTS_PER_STREAM = 32
# Tokens of a row that are not text: SEP after both segments, CLS at the end.
SPECIAL_TOKENS_PER_ROW = 3
# Probability that B is a random part of the stream.
RANDOM_PROBABILITY = 0.5
# Token type of CLS; A has 0, B has 1.
CLS_TYPE = 2
# Features of a row beside `inputs`.
FEATURES = ("token_types", "ranks", "is_target", "reversed")


class Segments(NamedTuple):
    """Segments A and B of rows: offset in the stream and length, int32 `[rows]` each."""

    a_start: tf.Tensor
    a_length: tf.Tensor
    b_start: tf.Tensor
    b_length: tf.Tensor


class Draws(NamedTuple):
    """Random numbers in [0, 1) for the segments of rows, float32 `[rows]` each: where A ends, what B is, its start."""

    cut: tf.Tensor
    kind: tf.Tensor
    start: tf.Tensor


@tf.autograph.experimental.do_not_convert
def permutation_rows(
    ds: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None,
    output_features: Mapping[str, seqio.Feature],
    *,
    row_length: Callable[[], int] = lambda: 0,
    special: SpecialTokens | None = None,
    documents_per_stream: int = DOCUMENTS_PER_STREAM,
    permutation_window: Callable[[], int | None] = lambda: None,
) -> tf.data.Dataset:
    """Makes rows of documents, with a permutation and targets. Every second stream is reversed.

    A document ends with EOD, or with SEP if the vocabulary has no EOD. The end of a stream that does not fill a row is
    dropped, and a stream that is shorter than a row makes none.

    Args:
      ds: documents in the format of `data_tasks.pretraining.sentences`.
      sequence_length: length of `inputs`, that of a row; None for continuous data, whose examples are all rows of a
        stream, one after another.
      output_features: `inputs`, whose vocabulary has the special tokens.
      row_length: returns the length of a row of continuous data.
      special: the special tokens. Default: the tokens of the vocabulary.
      documents_per_stream: number of documents of a stream.
      permutation_window: returns the number of tokens that are permuted among themselves; see `permutation_ranks`.

    Returns:
      Examples of int32 features `[length]`: `inputs`; `token_types`, 0 up to the first SEP, 1 up to the second, 2 for
      CLS; `ranks`, of which a token sees its own and lower ones; `is_target`, 1 for the tokens to predict; and
      `reversed`, 1 in reversed streams.

    Raises:
      UserError: the length of a row is missing or too small, windows do not divide both halves of a row, or the
        vocabulary has no special tokens.
    """
    is_continuous = sequence_length is None
    length = row_length() if is_continuous else require_lengths("XLNet's data", sequence_length, "inputs")["inputs"]
    shortest = 2 * TOKENS_PER_TARGET  # a target in each half
    if length < shortest:
        raise UserError(
            f"TASK_FEATURE_LENGTHS: inputs={length} is too short for XLNet's rows. Give {shortest} or more."
        )
    vocabulary = output_features["inputs"].vocabulary
    special = special or special_tokens(vocabulary)
    eod = getattr(vocabulary, "eod_id", None)
    end = special.sep if eod is None else eod
    starts = tf.constant(starts_of_pieces(vocabulary))
    reuse, targets = length // 2, length // TOKENS_PER_TARGET
    window = permutation_window()
    if window is not None and (window < 1 or reuse % window or (length - reuse) % window):
        raise UserError(
            f"permutation_window={window} does not divide the halves of a row of {length} tokens. Give a divisor of "
            f"{reuse} and {length - reuse}, or None for whole halves."
        )

    def make(element, seeds):
        number, batch = element
        tokens, sentences = stream(batch, end)
        is_reversed = number % 2 == 1
        tokens, sentences = (tf.cond(is_reversed, lambda x=x: x[::-1], lambda x=x: x) for x in (tokens, sentences))
        rows = tf.maximum((tf.size(tokens) - length) // reuse + 1, 0)
        begins = reuse * tf.range(rows)
        draws = Draws(*tf.unstack(tf.random.stateless_uniform([len(Draws._fields), rows], seeds[0])))
        segments = next_segments(sentences, begins + reuse, length - reuse - SPECIAL_TOKENS_PER_ROW, draws)
        inputs, types = assemble(tokens, begins, segments, special, reuse=reuse, length=length)
        halves, goals = (inputs[:, :reuse], inputs[:, reuse:]), (targets - targets // 2, targets // 2)
        chosen = [
            sample_targets(half, starts, goal, seed, is_reversed=is_reversed)
            for half, goal, seed in zip(halves, goals, tf.unstack(seeds[1:3]), strict=True)
        ]
        is_function = (inputs == special.sep) | (inputs == special.cls)
        is_target = tf.concat(chosen, axis=1)
        ranks = permutation_ranks(is_target, is_function, reuse, seeds[3], window)
        found = {
            "inputs": inputs,
            "token_types": types,
            "ranks": ranks,
            "is_target": tf.cast(is_target & ~is_function, tf.int32),
            "reversed": tf.fill(tf.shape(inputs), tf.cast(is_reversed, tf.int32)),
        }
        return {name: tf.reshape(x, [-1]) for name, x in found.items()} if is_continuous else found

    ds = ds.ragged_batch(documents_per_stream).enumerate()
    ds = seqio.map_over_dataset(num_seeds=4)(make)(ds)
    return ds.filter(lambda example: tf.size(example["inputs"]) > 0) if is_continuous else ds.unbatch()


def stream(batch: Mapping[str, tf.Tensor], end: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Joins documents: returns the tokens, int32 `[total]`, and the number of the sentence of each.

    Args:
      batch: ragged documents in the format of `data_tasks.pretraining.sentences`.
      end: the token after each document, a sentence of its own.
    """
    lengths = tf.concat([batch["sentence_lengths"], tf.ones_like(batch["sentence_lengths"][:, :1])], axis=1).flat_values
    ends = tf.fill([batch["tokens"].nrows(), 1], end)
    tokens = tf.concat([batch["tokens"], ends], axis=1).flat_values
    return tokens, tf.repeat(tf.range(tf.size(lengths)), lengths)


def next_segments(sentences: tf.Tensor, begins: tf.Tensor, total: int, draws: Draws) -> Segments:
    """Chooses segments A and B, which have `total` tokens together (`_split_a_and_b` of the released code).

    The sentences from `begins` on, up to the one with which they have `total` tokens, are cut at a random boundary.
    With probability 0.5, or without a boundary, B is not the rest but a random part of the stream, extended to whole
    sentences. The longer one of A and B loses tokens at its end.

    Args:
      sentences: number of the sentence of each token of the stream, ascending or descending, int32 `[tokens]`.
      begins: offset of A in the stream, int32 `[rows]`. At least `total` tokens follow it.
      total: number of tokens of both segments.
      draws: random choices.
    """
    size = tf.size(sentences)
    boundaries = 1 + tf.cast(tf.squeeze(tf.where(sentences[1:] != sentences[:-1]), 1), tf.int32)
    first = tf.searchsorted(boundaries, begins, side="right")
    last = tf.searchsorted(boundaries, begins + total)
    count = last - first
    after = tf.concat([boundaries, [size]], axis=0)
    end = tf.gather(after, last)
    cut = tf.gather(after, first + tf.cast(draws.cut * tf.cast(count, tf.float32), tf.int32))
    a_end = tf.where(count > 0, cut, end)
    follows = (count > 0) & (draws.kind >= RANDOM_PROBABILITY)
    wanted = tf.maximum(1, total - (a_end - begins))
    random_start = tf.cast(draws.start * tf.cast(size - wanted + 1, tf.float32), tf.int32)
    random_start = tf.minimum(random_start, size - wanted)
    random_end = random_start + wanted
    before = tf.concat([[0], boundaries], axis=0)
    extended_start = tf.gather(before, tf.searchsorted(boundaries, random_start, side="right"))
    extended_end = tf.gather(after, tf.searchsorted(boundaries, random_end))
    extended_end = tf.maximum(random_end, tf.minimum(extended_end, size - 1))
    b_start, b_end = tf.where(follows, a_end, extended_start), tf.where(follows, end, extended_end)
    a_length, b_length = a_end - begins, b_end - b_start
    a_kept = tf.where(
        a_length <= total // 2, a_length, tf.where(b_length <= total // 2, total - b_length, total - total // 2)
    )
    return Segments(begins, a_kept, b_start, total - a_kept)


def assemble(
    tokens: tf.Tensor, begins: tf.Tensor, segments: Segments, special: SpecialTokens, *, reuse: int, length: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `inputs` and `token_types` of rows, int32 `[rows, length]`.

    Args:
      tokens: tokens of the stream, int32 `[tokens]`.
      begins: offset of the old tokens of each row, int32 `[rows]`.
      segments: the segments of each row.
      special: the special tokens.
      reuse: number of old tokens.
      length: number of tokens of a row.
    """
    column = tf.range(length)[tf.newaxis]
    a_end = reuse + segments.a_length[:, tf.newaxis]  # position of the first SEP
    from_b = column - a_end - 1 + segments.b_start[:, tf.newaxis]
    source = tf.where(column <= a_end, begins[:, tf.newaxis] + column, from_b)
    inputs = tf.gather(tokens, tf.clip_by_value(source, 0, tf.size(tokens) - 1))
    is_sep = (column == a_end) | (column == length - 2)
    inputs = tf.where(is_sep, special.sep, tf.where(column == length - 1, special.cls, inputs))
    types = tf.where(column <= a_end, 0, tf.where(column < length - 1, 1, CLS_TYPE))
    return inputs, types
