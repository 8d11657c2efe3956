"""Distributions of scores, and the head on the vectors of two texts."""

from objective_case import ROWS, Case

from t5x_like.objectives.heads.compared_texts import ComparedTexts
from t5x_like.objectives.score_distribution import ScoreDistribution

CASES = {
    "score distribution of compared texts": Case(
        ScoreDistribution(head=ComparedTexts(pooling="mean")), "bert", lambda rng: rng.uniform(-1, 5, (ROWS, 1))
    ),
}
