"""ELECTRA's examples: two segments of consecutive sentences (`build_pretraining_dataset.py` of the released code).

Examples are made from a batch of documents at once, because the cost of tf.data grows with the number of its elements.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from data_tasks.feature_checks import require_lengths
from data_tasks.pretraining.row_maker import RowMaker, makes_rows
from data_tasks.pretraining.sentence_pairs import (
    SPECIAL_TOKENS_PER_PAIR,
    Documents,
    Pairs,
    assemble_pairs,
    chunk_ends,
)
from t5x_like.errors import UserError

SINGLE_SEGMENT_PROBABILITY = 0.1
RANDOM_LENGTH_PROBABILITY = 0.05
# Smallest random target length, special tokens included.
MIN_TARGET_LENGTH = 5
# A sentence that is too long for the rest of segment A, while B is empty, joins A with this probability.
OVERFLOW_PROBABILITY = 0.5
_SPECIAL_TOKENS_OF_ONE_SEGMENT = 2  # of [CLS] A [SEP]


def _length(sequence_length: Mapping[str, int] | None) -> int:
    length = require_lengths("a task of two segments", sequence_length, "inputs")["inputs"]
    if length < MIN_TARGET_LENGTH:
        raise UserError(
            f"TASK_FEATURE_LENGTHS={dict(sequence_length)}: an example has three special tokens and at least one token "
            f"per segment. Set 'inputs' to {MIN_TARGET_LENGTH} or more."
        )
    return length


@makes_rows(num_seeds=2, length_of=_length)
def segment_examples(maker: RowMaker, batch: dict, seeds: tf.Tensor) -> dict[str, tf.Tensor]:
    """Makes rows [CLS] A [SEP] B [SEP] of consecutive sentences, a tenth of which have segment A alone.

    A row takes sentences until they reach a target length, or until the document ends. The target is the length of
    `inputs`; for 5 % of the rows, it is uniform between 5 and this length. The released code draws the target of an
    example after the one before it, across documents, so that only its first target is not drawn.

    Args:
      maker: Makes the rows.
      batch: Documents in the format of `data_tasks.pretraining.sentences`.
      seeds: Stateless seeds, `[2, 2]`.

    Returns:
      `inputs` and `token_types` (0 up to the first [SEP], 1 after it), int32 `[rows, length]`, 0 after the end.
    """
    documents, length = Documents.from_batch(batch), maker.length
    starts = example_starts(documents, lambda step: _target_lengths(documents, length, seeds[0], step))
    single, overflow = tf.unstack(tf.random.stateless_uniform([2, tf.size(starts.first)], seeds[1]))
    goals = first_segment_goals(starts.target, single < SINGLE_SEGMENT_PROBABILITY)
    tokens, pairs = divide(documents, starts.first, goals, overflow < OVERFLOW_PROBABILITY, length)
    rows = assemble_pairs(tokens, pairs, maker.special, length)
    return {name: rows[name] for name in ("inputs", "token_types")}


class Starts(NamedTuple):
    """Where examples begin, in the order of the text: first sentence and target length, int32 `[examples]` each."""

    first: tf.Tensor
    target: tf.Tensor


def example_starts(documents: Documents, targets: Callable[[tf.Tensor], tf.Tensor]) -> Starts:
    """Divides documents into examples of whole sentences.

    Args:
      documents: a batch of documents.
      targets: number n -> target length of example n of each document, int32 `[documents]`.

    Returns:
      The examples. Each ends where the next one begins; only the last example of a document may be shorter than its
      target.
    """
    lasts = documents.firsts[1:]

    def add_examples(step, starts, written):
        goals = targets(step)
        ends = tf.minimum(chunk_ends(documents, starts, goals, lasts), lasts)
        found = tf.boolean_mask(tf.stack([starts, goals], axis=1), starts < lasts)
        return step + 1, ends, written.write(step, found)

    empty = tf.TensorArray(tf.int32, size=0, dynamic_size=True, infer_shape=False, element_shape=[None, 2])
    *_, written = tf.while_loop(
        lambda step, starts, written: tf.reduce_any(starts < lasts),
        add_examples,
        (tf.constant(0), documents.firsts[:-1], empty),
        parallel_iterations=1,
    )
    found = written.concat()
    return Starts(*tf.unstack(tf.gather(found, tf.argsort(found[:, 0])), axis=1))


def first_segment_goals(targets: tf.Tensor, single: tf.Tensor) -> tf.Tensor:
    """Returns the length that segment A should not exceed: half of the text, or no limit for a single segment.

    Args:
      targets: target lengths of the examples, special tokens included, int32 `[examples]`.
      single: which examples have segment A alone, bool `[examples]`.

    Returns:
      int32 `[examples]`.
    """
    return tf.where(single, tf.int32.max // 2, (targets - SPECIAL_TOKENS_PER_PAIR) // 2)


def divide(
    documents: Documents, starts: tf.Tensor, goals: tf.Tensor, overflow: tf.Tensor, length: int
) -> tuple[tf.Tensor, Pairs]:
    """Divides the sentences of examples between segments A and B, and trims both at their ends.

    A sentence joins A if A is empty, if A stays below its goal, or, while B is empty and A is below its goal, if
    `overflow`. So a short sentence may join A after a longer one has begun B.

    Args:
      documents: the documents.
      starts: first sentence of each example, ascending, int32 `[examples]`. An example ends where the next one begins.
      goals: goal of the length of A, int32 `[examples]`.
      overflow: whether the first sentence with which A reaches its goal joins A, bool `[examples]`.
      length: maximum length of an example with its special tokens.

    Returns:
      The tokens in the order of the segments, int32 `[total]`, and the segments of each example as pairs with label 0.
    """
    sizes = documents.boundaries[1:] - documents.boundaries[:-1]
    counts = tf.concat([starts[1:], tf.shape(sizes)], axis=0) - starts
    examples = tf.size(starts)

    def place(step, a_length, b_length, in_b):
        real = step < counts
        size = tf.where(real, tf.gather(sizes, tf.minimum(starts + step, tf.size(sizes) - 1)), 0)
        over = (b_length == 0) & (a_length < goals) & overflow
        to_a = (a_length == 0) | (a_length + size < goals) | over
        in_b = in_b.write(step, ~to_a)
        return step + 1, a_length + tf.where(to_a, size, 0), b_length + tf.where(to_a, 0, size), in_b

    none = tf.zeros([examples], tf.int32)
    placed = tf.TensorArray(tf.bool, size=0, dynamic_size=True, element_shape=[None])
    _, a_length, b_length, placed = tf.while_loop(
        lambda step, *_: step < tf.reduce_max(counts),
        place,
        (tf.constant(0), none, none, placed),
        parallel_iterations=1,
    )
    in_b = tf.RaggedTensor.from_tensor(tf.transpose(placed.stack()), lengths=counts).flat_values
    # A stable sort moves the sentences of A before those of B within each example.
    example = tf.repeat(tf.range(examples), counts)
    order = tf.argsort(2 * example + tf.cast(in_b, tf.int32), stable=True)
    every = tf.RaggedTensor.from_row_splits(documents.tokens, documents.boundaries, validate=False)
    a_start = tf.gather(documents.boundaries, starts)
    a_kept = tf.minimum(a_length, length - _SPECIAL_TOKENS_OF_ONE_SEGMENT)
    b_kept = tf.minimum(b_length, tf.maximum(length - a_kept - SPECIAL_TOKENS_PER_PAIR, 0))
    return tf.gather(every, order).flat_values, Pairs(a_start, a_kept, a_start + a_length, b_kept, none)


def _target_lengths(documents: Documents, length: int, seed: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Draws the target lengths of the next example of each document, int32 `[documents]`."""
    key = tf.random.experimental.stateless_fold_in(seed, step)
    which, value = tf.unstack(tf.random.experimental.stateless_split(key, 2))
    shape = tf.shape(documents.hashes)
    is_random = tf.random.stateless_uniform(shape, which) < RANDOM_LENGTH_PROBABILITY
    drawn = tf.random.stateless_uniform(shape, value, MIN_TARGET_LENGTH, length + 1, tf.int32)
    return tf.where(is_random, drawn, length)
