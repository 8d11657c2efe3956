"""ELECTRA's masking (Clark et al. 2020, section 2, and `mask` in the released `pretrain_helpers.py`)."""

import dataclasses

import seqio
import tensorflow as tf

from data_tasks.pretraining.masked_lm import REPLACEMENT_DRAW, BertMasking, Draw, Rows, fraction

# Of the chosen tokens, this fraction becomes [MASK]; the others stay unchanged.
MASK_FRACTION = 0.85


@dataclasses.dataclass(frozen=True)
class ElectraMasking(BertMasking):
    """Chooses tokens like BERT. Of these, 85 % become [MASK], and 15 % stay unchanged.

    The released code draws positions with replacement, so that it often masks fewer than 15 % of a row; here all
    positions differ.
    """

    def replacements(self, rows: Rows, chosen: tf.Tensor, draw: Draw, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Returns [MASK] or the token itself; see `Masking.replacements`."""
        return tf.where(fraction(draw(REPLACEMENT_DRAW)) < MASK_FRACTION, rows.special.mask, rows.tokens)
