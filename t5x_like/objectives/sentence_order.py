"""Sentence-order prediction: an encoder predicts whether two consecutive segments are swapped."""

from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.recorded import recorded


@recorded
class SentenceOrder(NextSentence):
    """Predicts whether the two segments of a row are swapped (ALBERT, Lan et al. 2020, section 3.1).

    It has the head and the term of `NextSentence`; the data differs. `next_sentence_label` is 0 for consecutive
    segments in order, and 1 for swapped ones. The metrics are `sentence_order_loss` in nats per row and
    `sentence_order_accuracy`.

    Args:
      pooler: Whether the head has BERT's pooler.
    """

    metrics_prefix = "sentence_order"
