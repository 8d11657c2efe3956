"""Masking of each token by itself: ModernBERT (Warner et al. 2024), NeoBERT (Le Breton et al. 2025), MosaicBERT.

Each kind of data is a task over the shipped corpus and one over text files. Their argument `mask_rate` is the
probability that a token is masked. ModernBERT and MosaicBERT mask 0.3 in training and 0.15 in evaluations.
"""

import dataclasses
import functools
import math

import seqio
import tensorflow as tf

from data_tasks.pretraining.masked_lm import ORDER_DRAW, BertMasking, Draw, Rows, fraction, select_top
from data_tasks.pretraining.masked_lm_tasks import PYTHON_DOCS, add_masked_lm_task, add_text_files_task, of_rate
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

# `targets` must hold the mean number of masked tokens and this many standard deviations more.
_DEVIATIONS = 5


@dataclasses.dataclass(frozen=True)
class IndependentMasking(BertMasking):
    """Chooses each token with the same probability. Random tokens come from the whole vocabulary.

    If a row has more chosen tokens than `targets` holds, some of them stay as they are, at random.

    Attributes:
      rate: the probability.
      all_masked: whether all chosen tokens become [MASK], instead of 80 %.
      with_special: whether [CLS] and [SEP] are chosen, too.
    """

    all_masked: bool = False
    with_special: bool = True

    def check(self, length: int, max_predictions: int) -> None:
        """Raises a UserError if `targets` often cannot hold all masked tokens."""
        deviation = math.sqrt(length * self.rate * (1 - self.rate))
        if max_predictions < (most := min(length, math.ceil(length * self.rate + _DEVIATIONS * deviation))):
            raise UserError(
                f"TASK_FEATURE_LENGTHS: of {length} tokens of 'inputs', {self.rate:.0%} are masked, and up to {most} "
                f"in a row, but 'targets' holds only {max_predictions}. Set targets to {most}."
            )

    def choose(self, rows: Rows, draw: Draw, max_predictions: int, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Chooses the tokens to predict; see `Masking.choose`."""
        draws = draw(ORDER_DRAW)
        chosen = (rows.real if self.with_special else rows.text) & (fraction(draws) < self.rate)
        wanted = tf.minimum(tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1), max_predictions)
        return select_top(tf.bitwise.invert(draws), chosen, wanted)

    def replacements(self, rows: Rows, chosen: tf.Tensor, draw: Draw, vocabulary: seqio.Vocabulary) -> tf.Tensor:
        """Draws random tokens from the vocabulary; see `Masking.replacements`."""
        if self.all_masked:
            return tf.fill(tf.shape(rows.tokens), rows.special.mask)
        return super().replacements(rows, chosen, draw, vocabulary)


for _kind, _masking, _rate in (
    ("modernbert", IndependentMasking, 0.3),
    ("neobert", functools.partial(IndependentMasking, all_masked=True), 0.2),
    ("mosaicbert", functools.partial(IndependentMasking, with_special=False), 0.3),
):
    task_arguments.declare(f"python_docs_{_kind}", mask_rate=_rate)
    add_masked_lm_task(f"python_docs_{_kind}", *PYTHON_DOCS, masking=of_rate(f"python_docs_{_kind}", _masking))
    add_text_files_task(f"text_files_{_kind}", _masking, rate=_rate)
