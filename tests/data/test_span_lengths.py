"""Lengths of span corruption against published values."""

import pytest

from t5x_like.data.span_lengths import check_fits, corrupted_lengths, noise_counts, span_lengths
from t5x_like.errors import UserError

pytestmark = pytest.mark.notf


@pytest.mark.parametrize(
    ("inputs", "density", "mean", "raw", "targets"),
    [
        (512, 0.15, 3.0, 568, 114),
        (1024, 0.15, 3.0, 1137, 229),
        (2048, 0.15, 3.0, 2274, 456),
        (512, 0.15, 2.0, 552, 126),
        (512, 0.15, 5.0, 581, 105),
        (512, 0.15, 10.0, 591, 99),
        (1024, 0.15, 20.0, 1193, 189),
        (512, 0.5, 3.0, 766, 512),
    ],
)
def test_published_lengths(inputs, density, mean, raw, targets):
    lengths = span_lengths(inputs, density, mean)
    assert (lengths.raw, lengths.targets) == (raw, targets)


@pytest.mark.parametrize(("inputs", "spans"), [(512, 28), (1024, 57), (2048, 114), (1809, 100), (1810, 101)])
def test_number_of_spans(inputs, spans):
    assert span_lengths(inputs).spans == spans


@pytest.mark.parametrize("inputs", [3, 4, 7, 32, 128, 511, 1000])
def test_chunk_is_the_largest_that_fits(inputs):
    lengths = span_lengths(inputs)
    assert lengths.inputs <= inputs < corrupted_lengths(lengths.raw + 1).inputs
    assert lengths.inputs + lengths.targets == lengths.raw + 2 * (lengths.spans + 1)


def test_noise_counts_keep_a_token_on_each_side():
    assert noise_counts(2) == (1, 1)
    assert noise_counts(3, 0.99, 1.0) == (2, 1)  # one token that is not noise starts one span
    assert noise_counts(20, 0.5, 1.0) == (10, 10)


@pytest.mark.parametrize(("length", "noise"), [(189, 28), (190, 29), (350, 53), (390, 59), (670, 101), (568, 85)])
def test_noise_is_rounded_in_float32(length, noise):
    # At density 0.15 the first of these have a half in float64, and a little more in the t5 package.
    assert noise_counts(length)[0] == noise


def test_too_few_sentinels_raise():
    check_fits(1809, 402, sentinels=100)
    with pytest.raises(UserError, match="inputs=2048.* 2274 raw tokens have 114 noise spans.*100 sentinels") as error:
        check_fits(2048, 456, sentinels=100)
    for remedy in ("at most 1809 in TASK_FEATURE_LENGTHS", "mean_noise_span_length", "extra_ids=114 or more"):
        assert remedy in str(error.value)
    check_fits(2048, 456, sentinels=114)


def test_too_short_targets_raise():
    with pytest.raises(UserError, match="the targets have 114 tokens, but targets=100. Set targets to 114"):
        check_fits(512, 100, sentinels=100)


@pytest.mark.parametrize(("density", "mean"), [(0.0, 3.0), (1.0, 3.0), (0.15, 0.5)])
def test_rates_out_of_range_raise(density, mean):
    with pytest.raises(UserError, match="noise_density=|mean_noise_span_length="):
        span_lengths(512, density, mean)


def test_too_short_inputs_raise():
    with pytest.raises(UserError, match="inputs=2: too short for span corruption. Give at least 3"):
        span_lengths(2)
