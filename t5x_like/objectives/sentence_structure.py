"""StructBERT's sentence objective: an encoder predicts how two segments follow each other."""

from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.recorded import recorded

NAME = "sentence_structure"


@recorded
class SentenceStructure(NextSentence):
    """Predicts whether the second segment of a row follows the first (StructBERT, Wang et al. 2020, section 3.2).

    Term and form of the head are those of `NextSentence`, but the head is named `sentence_structure` and has three
    classes: `next_sentence_label` is 0 if the second segment follows the first, 1 if it precedes the first, and 2 if it
    is random. The metrics are `sentence_structure_loss` in nats per row and `sentence_structure_accuracy`.

    Args:
      pooler: Whether the head has BERT's pooler.
    """

    metrics_prefix = head = NAME
    classes = 3
