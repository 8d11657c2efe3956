"""Supervised fine-tuning, with and without the probabilities of tokens as weights."""

from objective_case import Case

from t5x_like.objectives.sft import SFT

CASES = {
    "sft": Case(SFT(), "llama"),
    "dynamic_sft": Case(SFT(dynamic=True), "llama"),
}
