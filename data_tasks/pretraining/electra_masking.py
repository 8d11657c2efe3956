"""ELECTRA's masking (Clark et al. 2020, section 2, and `mask` in the released `pretrain_helpers.py`)."""

import dataclasses

import seqio
import tensorflow as tf

from data_tasks.pretraining.masked_lm import ORDER_DRAW, REPLACEMENT_DRAW, BertMasking, Draw, Rows, fraction

# Of the chosen tokens, this fraction becomes [MASK]; the others stay unchanged.
MASK_FRACTION = 0.85


@dataclasses.dataclass(frozen=True)
class ElectraMasking(BertMasking):
    """Chooses tokens like BERT. Of these, 85 % become [MASK], and 15 % stay unchanged.

    Attributes:
      with_replacement: whether positions are drawn with replacement, as in the released code. A position that is drawn
        twice is predicted twice, so that fewer than 15 % of the tokens are masked. By default, all positions differ.
    """

    with_replacement: bool = False

    def choose(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Chooses the tokens to predict; see `Masking.choose`."""
        if not self.with_replacement:
            return super().choose(rows, draw, max_predictions, vocabulary)
        length = tf.shape(rows.tokens)[1]
        candidates = tf.reduce_sum(tf.cast(rows.text, tf.int32), axis=1, keepdims=True)
        wanted = tf.where(candidates[:, 0] > 0, self.number_to_choose(rows, max_predictions), 0)
        uniform = fraction(draw(ORDER_DRAW)[:, :max_predictions])
        drawn = tf.cast(uniform * tf.cast(candidates, tf.float64), tf.int32)
        drawn = tf.where(tf.range(tf.shape(drawn)[1]) < wanted[:, tf.newaxis], drawn, -1)
        # Draw k chooses the token with k tokens of text before it.
        before = tf.where(rows.text, tf.cumsum(tf.cast(rows.text, tf.int32), axis=1, exclusive=True), length)
        return tf.reduce_sum(tf.cast(before[:, :, tf.newaxis] == drawn[:, tf.newaxis], tf.int32), axis=2)

    def replacements(self, rows: Rows, chosen: tf.Tensor, draw: Draw, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Returns [MASK] or the token itself; see `Masking.replacements`.

        A token that is drawn several times becomes [MASK] if one of the draws says so.
        """
        kept = (1 - MASK_FRACTION) ** tf.cast(chosen, tf.float64)
        return tf.where(fraction(draw(REPLACEMENT_DRAW)) < 1 - kept, rows.special.mask, rows.tokens)
