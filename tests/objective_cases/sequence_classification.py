"""Classification of rows."""

from objective_case import LABELS, ROWS, Case

from t5x_like.objectives import heads
from t5x_like.objectives.bidirectional import GRUCells
from t5x_like.objectives.heads.birnn_head import BiRNN
from t5x_like.objectives.heads.pair_attention import Enhancement
from t5x_like.objectives.heads.pooled_tokens import PooledTokens
from t5x_like.objectives.heads.pooled_windows import PooledWindows
from t5x_like.objectives.heads.text_ids import TokenTypes
from t5x_like.objectives.heads.text_vectors_head import TextVectors
from t5x_like.objectives.label_gain import LabelGain
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
        SequenceClassification(LABELS, head=BiRNN(head=PooledTokens())),
        "bidirectional_gru",
        lambda rng: rng.integers(0, 3, (ROWS, 1)),
    ),
    "classification of pairs by BiGRUs with ESIM's comparison": Case(
        SequenceClassification(
            LABELS,
            head=TextVectors(
                texts_per_row=2,
                text_ids=TokenTypes(),
                attention=Enhancement(),
                cells=GRUCells(),
                size=4,
                classifier_size=6,
            ),
        ),
        "bert",
        lambda rng: rng.integers(0, 3, (ROWS, 1)),
    ),
    "classification of windows": Case(
        SequenceClassification(LABELS, head=PooledWindows(form=heads.PooledFirstToken(), windows=2)),
        "bert",
        lambda rng: rng.integers(0, 3, (ROWS, 1)),
    ),
    "classification with a decoder": Case(
        SequenceClassification(LABELS, head=heads.LastToken()), "llama", lambda rng: rng.integers(0, 3, (ROWS, 1))
    ),
}
