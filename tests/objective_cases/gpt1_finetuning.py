"""GPT-1's fine-tuning, with the auxiliary language model."""

from objective_case import LABELS, ROWS, Case

from t5x_like.objectives.gpt1_finetuning import AuxiliaryLM, ExtractToken
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.multiple_choice import MultipleChoice
from t5x_like.objectives.sequence_classification import SequenceClassification

CASES = {
    "GPT-1's multiple choice": Case(
        Joint([MultipleChoice(2, head=ExtractToken()), AuxiliaryLM(num_sequences=2)]),
        "gpt1",
        lambda rng: rng.integers(0, 2, (ROWS, 1)),
        "key/bias|classifier/bias",
    ),
    "GPT-1's similarity": Case(
        Joint([SequenceClassification(LABELS, head=ExtractToken(orders=2)), AuxiliaryLM(num_sequences=2)]),
        "gpt1",
        lambda rng: rng.integers(0, 3, (ROWS, 1)),
    ),
}
