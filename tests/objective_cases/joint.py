"""BERT's two pretraining objectives over one model."""

from objective_case import Case

from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

CASES = {
    "pretraining": Case(Joint([MaskedLM(), NextSentence()]), "bert"),
}
