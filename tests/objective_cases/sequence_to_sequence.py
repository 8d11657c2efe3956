"""Text to text."""

from objective_case import Case

from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

CASES = {
    "sequence_to_sequence": Case(SequenceToSequence(), "t5_1_1"),
}
