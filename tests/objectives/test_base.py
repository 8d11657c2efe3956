"""Every objective implements the `Objective` protocol."""

import inspect

import pytest

from t5x_like.data.features import FeatureSpec
from t5x_like.objectives.base import Objective
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.prefix_lm import PrefixLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

OBJECTIVES = [CausalLM(), Joint([MaskedLM()]), MaskedLM(), NextSentence(), PrefixLM(), SequenceToSequence()]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: type(objective).__name__)
def test_objective_implements_the_protocol(objective):
    assert isinstance(objective.features, FeatureSpec)
    assert objective.coefficients and all(isinstance(value, float) for value in objective.coefficients.values())
    for method in ("init", "weights", "terms"):
        expected = inspect.signature(getattr(Objective, method)).parameters
        found = inspect.signature(getattr(type(objective), method)).parameters
        assert [(p.name, p.kind, p.default) for p in found.values()] == [
            (p.name, p.kind, p.default) for p in expected.values()
        ]
