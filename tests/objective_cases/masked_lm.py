"""The masked language model."""

from objective_case import Case

from t5x_like.objectives.masked_lm import MaskedLM

CASES = {
    "masked_lm": Case(MaskedLM(z_loss=1e-2), "bert"),
}
