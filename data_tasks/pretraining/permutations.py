"""The permutation of a row, as ranks (Yang et al. 2019, section 2.2; `_local_perm` of the released code)."""

import tensorflow as tf


def permutation_ranks(is_chosen: tf.Tensor, is_function: tf.Tensor, reuse: int, seed: tf.Tensor) -> tf.Tensor:
    """Draws the rank of each token. A token sees its own rank and lower ones, a target lower ones alone.

    The two parts of a row are permuted by themselves, and the first does not see the second. In each part, chosen
    tokens and SEP and CLS are permuted; the others have the lowest rank and are visible to all.

    Args:
      is_chosen: the tokens that are chosen as targets, bool `[rows, length]`.
      is_function: SEP and CLS, bool `[rows, length]`.
      reuse: number of tokens of the first part.
      seed: stateless seed `[2]`.

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
        order = tf.argsort(tf.random.stateless_uniform([rows, size], seed_of_part), axis=1)
        parts.append(tf.where(part, base + 1 + order, base))
        base += size + 1
    return tf.concat(parts, axis=1)
