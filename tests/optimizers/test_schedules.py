"""Schedules against hand-worked values and T5X's formulas."""

import math

import jax
import jax.numpy as jnp
import pytest

from t5x_like import optimizers
from t5x_like.errors import UserError
from t5x_like.optimizers import schedules


def at(schedule, *steps):
    """Returns the schedule as training calls it: jitted, on int32 steps."""
    jitted = jax.jit(schedule)
    values = [jitted(jnp.int32(step)) for step in steps]
    assert all(value.dtype == jnp.float32 and value.shape == () for value in values)
    return [float(value) for value in values]


def approx(*values):
    return pytest.approx(values, rel=1e-6)


def test_rsqrt_matches_t5_pretraining():
    steps = (0, 1, 9_999, 10_000, 40_000, 1_000_000)
    expected = approx(0.01, 0.01, 0.01, 0.01, 0.005, 0.001)
    assert at(schedules.rsqrt(), *steps) == expected
    t5x = schedules.factors("constant * rsqrt_decay", base_learning_rate=1.0, warmup_steps=10_000)
    assert at(t5x, *steps) == expected


def test_rsqrt_floor():
    assert at(schedules.rsqrt(1.0, warmup_steps=4, floor=0.25), 4, 9, 16, 100) == approx(0.5, 1 / 3, 0.25, 0.25)


def test_constant_after_warmup():
    assert at(schedules.constant(0.001), 0, 7) == approx(0.001, 0.001)
    assert at(schedules.constant(0.8, warmup_steps=4), 0, 1, 3, 4, 100) == approx(0.0, 0.2, 0.6, 0.8, 0.8)
    assert at(schedules.constant(0.8, warmup_steps=4, floor=0.3), 0, 1, 2) == approx(0.3, 0.3, 0.4)


def test_linear_values():
    schedule = schedules.linear(1.0, total_steps=12, warmup_steps=2, floor=0.1)
    assert at(schedule, 0, 1, 2, 7, 12, 50) == approx(0.1, 0.5, 1.0, 0.55, 0.1, 0.1)


def test_polynomial_values():
    schedule = schedules.polynomial(1.0, total_steps=12, power=3, warmup_steps=2, floor=0.1)
    assert at(schedule, 0, 1, 2, 7, 12, 50) == approx(0.1, 0.5, 1.0, 0.1 + 0.9 * 0.5**3, 0.1, 0.1)
    with pytest.raises(UserError, match="power=0 of the schedule is not positive"):
        schedules.polynomial(1.0, total_steps=12, power=0)


def test_triangle_values():
    schedule = schedules.triangle(0.5, total_steps=16)
    assert at(schedule, 0, 6, 12, 14, 16, 20) == approx(0.125, 0.3125, 0.5, 0.25, 0.0, 0.0)
    with pytest.raises(UserError, match="fall=1.0 of triangle"):
        schedules.triangle(0.5, total_steps=16, fall=1.0)


def test_cosine_values():
    schedule = schedules.cosine(1.0, total_steps=12, warmup_steps=4, floor=0.2)
    assert at(schedule, 1, 4, 8, 12, 99) == approx(0.25, 1.0, 0.6, 0.2, 0.2)
    assert at(schedule, 6) == approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))


def test_exponential_values():
    released = schedules.exponential(1e-3, decay_rate=0.9999)
    assert at(released, 0, 1, 2) == approx(1e-3, 9.999e-4, 9.9980001e-4)
    # 1e-3 · exp(-1) and 1e-3 · exp(-10), approximately, where 0.9999 is the nearest float32.
    assert at(released, 10_000, 100_000) == pytest.approx([3.678e-4, 4.530e-8], rel=1e-4)
    every_two = schedules.exponential(0.8, decay_rate=0.25, decay_steps=2, warmup_steps=2, floor=0.1)
    assert at(every_two, 0, 1, 2, 3, 4, 99) == approx(0.1, 0.4, 0.8, 0.4, 0.2, 0.1)


def test_wsd_values():
    schedule = schedules.wsd(1.0, total_steps=20, decay_steps=5, warmup_steps=2)
    assert at(schedule, 0, 1, 2, 15, 16, 19, 20, 21) == approx(0.0, 0.5, 1.0, 1.0, 0.8, 0.2, 0.0, 0.0)


def test_wsd_falls_as_a_power_of_the_fraction_of_the_decay():
    schedule = schedules.wsd(1.0, total_steps=20, decay_steps=16, decay_power=0.5, floor=0.2)
    assert at(schedule, 4, 5, 8, 13, 20, 21) == approx(1.0, 0.8, 0.6, 0.4, 0.2, 0.2)


def test_wsd_decays_over_the_last_tenth_by_default():
    assert at(schedules.wsd(1.0, total_steps=100), 90, 95, 100) == approx(1.0, 0.5, 0.0)


@pytest.mark.parametrize(
    ("make", "step", "expected"),
    [
        (lambda warmup: schedules.linear(1.0, total_steps=41, warmup_steps=warmup), 2, 0.5),
        (lambda warmup: schedules.cosine(1.0, total_steps=41, warmup_steps=warmup), 3, 0.75),
        (lambda warmup: schedules.wsd(1.0, total_steps=41, warmup_steps=warmup), 1, 0.25),
        (lambda warmup: schedules.constant(1.0, total_steps=41, warmup_steps=warmup), 1, 0.25),
        (lambda warmup: schedules.rsqrt(total_steps=41, warmup_steps=warmup), 1, 0.5),
        (
            lambda warmup: schedules.factors(
                "constant * linear_warmup", base_learning_rate=1.0, total_steps=41, warmup_steps=warmup
            ),
            3,
            0.75,
        ),
    ],
    ids=["linear", "cosine", "wsd", "constant", "rsqrt", "factors"],
)
def test_warmup_as_fraction_of_the_run_rounds_down(make, step, expected):
    # A tenth of 41 steps is 4.
    assert at(make(0.1), step) == at(make(4), step) == at(make(4.0), step) == approx(expected)


@pytest.mark.parametrize(
    ("arguments", "step", "expected"),
    [
        # T5X's defaults: 0.5 * min(1, s / 1000) / sqrt(max(s, 1000)).
        ({}, 500, 0.5 * 0.5 / math.sqrt(1000)),
        ({}, 4000, 0.5 / math.sqrt(4000)),
        ({}, 0, 1e-8),
        ({"step_offset": 100}, 600, 0.5 * 0.5 / math.sqrt(1000)),
        ({"step_offset": 100}, 50, 1e-8),
        ({"factors": "constant*rsqrt_normalized_decay"}, 500, 0.5),
        ({"factors": "constant*rsqrt_normalized_decay"}, 4000, 0.25),
        ({"factors": "constant * decay_every", "steps_per_decay": 10}, 9, 0.5),
        ({"factors": "constant * decay_every", "steps_per_decay": 10}, 25, 0.125),
        ({"factors": "constant * cosine_decay", "steps_per_cycle": 100}, 1025, 0.25 * (1 + math.cos(math.pi / 4))),
        # A new cycle starts at the top.
        ({"factors": "constant * cosine_decay", "steps_per_cycle": 100}, 1100, 0.5),
        ({"factors": "linear_decay", "decay_factor": 1e-3}, 250, 0.125),
        ({"factors": "linear_decay", "decay_factor": 1e-3}, 1500, 0.25),
        ({"factors": "linear_decay", "decay_factor": 1e-3}, 9000, 1e-8),
    ],
)
def test_factors_follow_t5x(arguments, step, expected):
    assert at(schedules.factors(**arguments), step) == pytest.approx([expected], rel=1e-5)


def test_unknown_factor_raises_with_suggestion():
    with pytest.raises(ValueError, match="'rsqrt_deccay'.*did you mean 'rsqrt_decay'"):
        schedules.factors("constant * rsqrt_deccay")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: schedules.cosine(1.0, total_steps=100, warmup_steps=100),
            "WARMUP_STEPS=100 is not less than TRAIN_STEPS=100",
        ),
        (lambda: schedules.linear(1.0, total_steps=10, warmup_steps=10_000), "WARMUP_STEPS=10000 .* TRAIN_STEPS=10"),
        (lambda: schedules.linear(1.0, total_steps=-5), "TRAIN_STEPS=-5 is not positive. Give a positive integer"),
        (lambda: schedules.cosine(1.0, total_steps=0, warmup_steps=0.1), "TRAIN_STEPS=0 is not positive"),
        (lambda: schedules.exponential(1.0, decay_rate=1.5), "decay_rate=1.5 of the schedule is out of range"),
        (lambda: schedules.exponential(1.0, decay_rate=0.5, decay_steps=0), "decay_steps=0 of the schedule is not pos"),
        (lambda: schedules.linear(-0.1, total_steps=5), "LEARNING_RATE=-0.1: negative or not finite"),
        (lambda: schedules.constant(float("nan")), "LEARNING_RATE=nan: negative or not finite"),
        (lambda: schedules.factors("constant", base_learning_rate=-1.0), "LEARNING_RATE=-1.0: negative"),
        (lambda: optimizers.adafactor(learning_rate=-0.001), "LEARNING_RATE=-0.001: negative"),
        (
            lambda: schedules.wsd(1.0, total_steps=10, warmup_steps=4, decay_steps=7),
            "DECAY_STEPS=7 .* 10 - 4 = 6",
        ),
        (lambda: schedules.wsd(1.0, total_steps=10, decay_power=0), "decay_power=0 is not positive. 1 is a linear"),
        (lambda: schedules.constant(0.1, floor=0.2), "FINAL_LEARNING_RATE=0.2 is not between 0 and LEARNING_RATE=0.1"),
        (lambda: schedules.constant(0.1, warmup_steps=-1), "WARMUP_STEPS=-1 is negative"),
        (lambda: schedules.constant(0.1, warmup_steps=0.1), "0.1 is a fraction.*total_steps = %TRAIN_STEPS"),
        (lambda: schedules.linear(1.0, total_steps=9, warmup_steps=1.5), "WARMUP_STEPS=1.5 is neither a number"),
        (lambda: schedules.linear(1.0, total_steps=9, warmup_steps=float("nan")), "WARMUP_STEPS=nan is neither"),
        (lambda: schedules.linear(1.0, total_steps=9, warmup_steps="10%"), "WARMUP_STEPS='10%' is not a number"),
        (lambda: schedules.rsqrt(warmup_steps=0), "WARMUP_STEPS=0 of rsqrt is not positive"),
        (lambda: schedules.factors(warmup_steps=0), "WARMUP_STEPS=0 of linear_warmup is not positive"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_piecewise_values():
    schedule = schedules.piecewise({0: 0.0, 10: 2.0, 20: 0.5})
    assert at(schedule, 0, 9, 10, 19, 20, 99) == approx(0.0, 0.0, 2.0, 2.0, 0.5, 0.5)
    for values in ({}, {1: 1.0}, {0: 1.0, 2.5: 0.0}):
        with pytest.raises(UserError, match="is not valid. Give integer steps, the first of which is 0"):
            schedules.piecewise(values)
