"""The language model."""

from objective_case import Case

from t5x_like.objectives.causal_lm import CausalLM

CASES = {
    "causal_lm": Case(CausalLM(), "llama"),
}
