"""UniLM's fine-tuning to sequence to sequence."""

from objective_case import Case

from t5x_like.objectives.unified_sequence_to_sequence import UnifiedSequenceToSequence

CASES = {
    "unified_sequence_to_sequence": Case(UnifiedSequenceToSequence(cls_id=2, sep_id=3, mask_id=4), "unilm"),
}
