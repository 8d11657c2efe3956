"""Rates of mixtures, without SeqIO."""

import math

import pytest

from t5x_like.data import mixing
from t5x_like.data.mixing import Rates, UniMax
from t5x_like.errors import UserError

pytestmark = pytest.mark.notf


def test_rate_is_limited_and_flattened():
    assert Rates().rate(400) == 400
    assert Rates(maximum=100).rate(400) == 100
    assert Rates(maximum=100, temperature=2.0).rate(25) == pytest.approx(5)
    assert Rates(temperature=4.0).rate(2**20) == pytest.approx(32)


def test_unimax_divides_a_budget_by_the_number_of_epochs():
    # By hand: 20 for the smallest (2 epochs of 10), then 80 / 2 for each of the others.
    counts = {"large": 1000, "small": 10, "medium": 100}
    assert UniMax(budget=100, epochs=2).of(counts) == {"large": 40.0, "small": 20.0, "medium": 40.0}
    assert UniMax(budget=9, epochs=5).of(counts) == dict.fromkeys(counts, 3.0)
    # All tasks are exhausted: what is left of the budget has no task.
    assert UniMax(budget=10**6, epochs=1).of(counts) == counts
    with pytest.raises(UserError, match="UniMax.budget=0 is not a positive number"):
        UniMax(budget=0, epochs=1)
    with pytest.raises(UserError, match="UniMax has no maximum and no temperature"):
        UniMax(budget=1, epochs=1, temperature=2.0)


def test_fractions_sum_to_one_without_tasks_of_rate_zero():
    assert mixing.fractions({"a": 3, "b": 1, "c": 0}, "m") == {"a": 0.75, "b": 0.25}
    assert mixing.describe({"a": 0.75, "b": 0.25}, "m") == "mixture m: a 75.00%, b 25.00%"
    with pytest.raises(UserError, match="mixture m: all rates are 0"):
        mixing.fractions({"a": 0}, "m")


@pytest.mark.parametrize("rate", [-1, math.nan, math.inf, float("1e999"), "1", None, True])
def test_invalid_rate_of_a_registered_mixture_is_named(rate):
    with pytest.raises(
        UserError, match=rf"mixture m: the rate {rate!r} of b is not a finite nonnegative number\. Corr"
    ):
        mixing.fractions({"a": 3, "b": rate}, "m")
    with pytest.raises(UserError, match="the sum of the rates is too large"):
        mixing.fractions({"a": 1e308, "b": 1e308}, "m")


def test_rate_that_is_too_large_raises():
    with pytest.raises(UserError, match="temperature=1e-05: the rate of 400 examples is too large"):
        Rates(temperature=1e-5).rate(400)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"maximum": 0}, "Rates.maximum=0 is not a positive number"),
        ({"maximum": math.nan}, "Rates.maximum=nan is not a positive number"),
        ({"temperature": "2"}, "Rates.temperature='2' is not a positive number"),
        ({"temperature": 0.0}, "Rates.temperature=0.0 is not a positive number"),
        ({"temperature": float("inf")}, "Rates.temperature=inf is not a positive number"),
        ({"tasks": "a"}, "Rates.tasks='a' is not a list of distinct task names"),
        ({"tasks": ["a", "a"]}, "is not a list of distinct task names"),
    ],
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(UserError, match=message):
        Rates(**settings)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([1, 2], r"RATES=\[1, 2\] has the type list. Give task names with their rates"),
        ({"a": -1}, "the rate -1 of a is not a finite nonnegative number"),
        ({"a": "1"}, "the rate '1' of a is not a finite nonnegative number"),
        ({"a": math.nan}, "the rate nan of a is not a finite nonnegative number"),
        ({"a": float("1e999")}, "the rate inf of a is not a finite nonnegative number"),
        ({"a": 0, "b": 0}, "no rate is positive"),
    ],
)
def test_invalid_rates_raise(rates, message):
    with pytest.raises(UserError, match=message):
        mixing.task_names(rates)
