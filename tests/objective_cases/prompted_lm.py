"""The language model with a prompt."""

from objective_case import Case

from t5x_like.objectives.prompted_lm import PromptedLM

CASES = {
    "prompted_lm": Case(PromptedLM(), "gpt2"),
}
