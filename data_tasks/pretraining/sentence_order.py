"""ALBERT's pairs: consecutive segments, half of them swapped (Lan et al. 2020, section 3.1)."""

import tensorflow as tf

from data_tasks.pretraining.sentence_pairs import Documents, Draws, Pairs, consecutive_or_random, swap_segments

_SWAP_PROBABILITY = 0.5


def ordered_pairs(documents: Documents, starts: tf.Tensor, targets: tf.Tensor, draws: Draws) -> tuple[Pairs, tf.Tensor]:
    """Makes the next pair of each document: two consecutive segments, swapped if `draws.kind` is less than 0.5.

    The second segment of a chunk with a single sentence comes from another document, as in the released code. The label
    is 1 for swapped segments and for these pairs. See `next_pairs` for the arguments and the result.
    """
    swap = draws.kind < _SWAP_PROBABILITY
    pairs, nexts = consecutive_or_random(documents, starts, targets, draws, tf.zeros_like(swap))
    swap &= pairs.label == 0
    label = tf.maximum(pairs.label, tf.cast(swap, tf.int32))
    return swap_segments(pairs, swap)._replace(label=label), nexts
