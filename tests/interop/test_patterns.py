"""Regular expressions of files: they match as `re` does, and within a second."""

import re
import time

import pytest

from t5x_like.errors import UserError
from t5x_like.interop import patterns

NAMES = ("model.layers.0.self_attn.q_proj", "encoder.block.11.layer.0.SelfAttention.q", "lm_head")
EXPRESSIONS = (
    r"(.*\.)?(q_proj)$",
    r".*layers\.(?P<layer>\d+)\..*(q|v)_proj",
    "lm_head|q",
    r"(?:^|.*?\.)block\.\d+\.",
    "",
)


@pytest.mark.parametrize("whole", [False, True])
def test_matches_are_those_of_re(whole):
    for expression in EXPRESSIONS:
        for name in NAMES:
            expected = (re.fullmatch if whole else re.match)(expression, name)
            found = patterns.match(expression, name, whole=whole)
            assert (found is None) == (expected is None), (expression, name)
            assert found is None or (found.span(), found.groupdict()) == (expected.span(), expected.groupdict())


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (r"(\w|\w\w|\.)+\B\b", "takes more than 0.5 s for 'model.layers.0"),
        (r"(?:\w|\w\w|\w\.|\.)+[A-Z]", "takes more than 0.5 s for 'model.layers.0"),
        ("(", r"not a regular expression \(missing \), unterminated subpattern"),
        ("(" * 5000 + ")" * 5000, "not a regular expression"),
        ("a" * 20_000, "a regular expression of 20,000 characters"),
    ],
)
def test_expressions_of_strangers_are_limited(expression, message):
    started = time.process_time()
    with pytest.raises(UserError, match=message):
        patterns.match(expression, "model.layers.0.self_attn.q_proj" * 3)
    assert time.process_time() - started < 2
