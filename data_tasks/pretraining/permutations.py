"""The permutation of a row, as ranks (Yang et al. 2019, section 2.2; `_local_perm` of the released code)."""

import tensorflow as tf


def permutation_ranks(
    is_chosen: tf.Tensor, is_function: tf.Tensor, reuse: int, seed: tf.Tensor, window: int | None = None
) -> tf.Tensor:
    """Draws the rank of each token. A token sees its own rank and lower ones, a target lower ones alone.

    The two parts of a row are permuted by themselves, and the first does not see the second. In each part, chosen
    tokens and SEP and CLS are permuted; the others have the lowest rank and are visible to all. Tokens are permuted
    within windows, which follow one another in the order of the text, and one permutation holds for all windows of a
    part (`perm_size` of the released code).

    Args:
      is_chosen: the tokens that are chosen as targets, bool `[rows, length]`.
      is_function: SEP and CLS, bool `[rows, length]`.
      reuse: number of tokens of the first part.
      seed: stateless seed `[2]`.
      window: number of tokens of a window, which divides both parts; None for whole parts.

    Returns:
      int32 `[rows, length]`, from 0.
    """
    is_permuted = is_chosen | is_function
    rows, length = tf.unstack(tf.shape(is_chosen))
    parts, base = [], 0
    sizes = (reuse, length - reuse)
    for part, seed_of_part, size in zip(
        tf.split(is_permuted, sizes, axis=1), tf.unstack(tf.random.split(seed, 2)), sizes, strict=True
    ):
        width = window or size
        within = tf.argsort(tf.random.stateless_uniform([rows, width], seed_of_part), axis=1)
        order = tf.tile(within, [1, size // width]) + tf.range(size) // width * width
        parts.append(tf.where(part, base + 1 + order, base))
        base += size + 1
    return tf.concat(parts, axis=1)
