"""Permutation language modeling, and language modeling in the order of the text with the same model."""

from objective_case import Case

from t5x_like.objectives.continued_text import ContinuedText
from t5x_like.objectives.permutation_lm import PermutationLM, SequentialLM

CASES = {
    "permutation_lm": Case(PermutationLM(), "xlnet"),
    "continued_text": Case(ContinuedText(bos_id=1), "xlnet"),
    "sequential_lm": Case(SequentialLM(), "xlnet"),
}
