"""A decoder on the rows of an encoder-decoder."""

from objective_case import Case

from t5x_like.objectives.joined_lm import JoinedLM

CASES = {
    "joined_lm": Case(JoinedLM(), "llama"),
}
