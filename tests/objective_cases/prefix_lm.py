"""The prefix language model."""

from objective_case import Case

from t5x_like.objectives.prefix_lm import PrefixLM

CASES = {
    "prefix_lm": Case(PrefixLM(), "llama"),
}
