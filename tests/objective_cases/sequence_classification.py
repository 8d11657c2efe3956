"""Classification of rows."""

from objective_case import LABELS, ROWS, Case

from t5x_like.objectives import heads
from t5x_like.objectives.bilstm_head import BiLSTM
from t5x_like.objectives.label_gain import LabelGain
from t5x_like.objectives.pooled_tokens import PooledTokens
from t5x_like.objectives.sequence_classification import SequenceClassification

CASES = {
    "classification": Case(
        SequenceClassification(LABELS, head=heads.PooledFirstToken(), label_smoothing=0.1),
        "bert",
        lambda rng: rng.integers(-1, 3, (ROWS, 1)),
    ),
    "classification with label gain": Case(
        LabelGain(LABELS, head=heads.ReluLastToken(size=9)), "gpt2", lambda rng: rng.integers(-1, 3, (ROWS, 1))
    ),
    "classification by a BiLSTM": Case(
        SequenceClassification(LABELS, head=BiLSTM(head=PooledTokens())),
        "bidirectional_gru",
        lambda rng: rng.integers(0, 3, (ROWS, 1)),
    ),
    "classification with a decoder": Case(
        SequenceClassification(LABELS, head=heads.LastToken()), "llama", lambda rng: rng.integers(0, 3, (ROWS, 1))
    ),
}
