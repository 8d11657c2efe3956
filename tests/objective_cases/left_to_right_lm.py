"""Left-to-right language modeling with an encoder."""

from objective_case import Case

from t5x_like.objectives.left_to_right_lm import LeftToRightLM

CASES = {"left_to_right_lm": Case(LeftToRightLM(), "causal_bert")}
