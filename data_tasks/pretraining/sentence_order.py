"""ALBERT's pairs: consecutive segments, half of them swapped (Lan et al. 2020, section 3.1)."""

import tensorflow as tf

from data_tasks.pretraining.sentence_pairs import Documents, Draws, Pairs, next_pairs


def ordered_pairs(documents: Documents, starts: tf.Tensor, targets: tf.Tensor, draws: Draws) -> tuple[Pairs, tf.Tensor]:
    """Makes the next pair of each document: two consecutive segments, swapped if `draws.random_next`.

    The second segment of a chunk with a single sentence comes from another document, as in the released code. The label
    `is_random` is 1 for swapped segments and for these pairs. See `next_pairs` for the arguments and the result.
    """
    pairs, nexts = next_pairs(documents, starts, targets, draws._replace(random_next=tf.zeros_like(draws.random_next)))
    swap = draws.random_next & (pairs.is_random == 0)
    swapped = Pairs(
        a_start=tf.where(swap, pairs.b_start, pairs.a_start),
        a_length=tf.where(swap, pairs.b_length, pairs.a_length),
        b_start=tf.where(swap, pairs.a_start, pairs.b_start),
        b_length=tf.where(swap, pairs.a_length, pairs.b_length),
        is_random=tf.maximum(pairs.is_random, tf.cast(swap, tf.int32)),
    )
    return swapped, nexts
