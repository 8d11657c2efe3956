"""Rotation frequencies against closed forms and stored values, and against transformers (marker `parity`)."""

import math

import numpy as np
import pytest

from t5x_like.errors import UserError
from t5x_like.layers import rope_scaling
from t5x_like.layers.rope_scaling import Dynamic, Linear, Llama3, Yarn

SIZES, THETAS = (4, 6, 10, 64, 96, 128), (100.0, 1e4, 12345.6, 5e5, 1e6)


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("size", SIZES)
def test_unscaled_frequencies_equal_float64(theta, size):
    found = rope_scaling.unscaled(theta, size)
    exact = np.array([theta ** (-2 * i / size) for i in range(size // 2)])
    assert found.dtype == np.float32
    # A relative error of the float32 exponent changes the power by up to ln(theta) times as much.
    np.testing.assert_allclose(found, exact, rtol=(1 + math.log(theta)) * 2**-24)


def test_unscaled_frequencies_equal_torch():
    # Entries of 1 / 1e4 ** (arange(0, 128, 2) / 128), computed with torch 2.13.
    found = rope_scaling.unscaled(1e4, 128)[[1, 9, 23, 40, 63]]
    np.testing.assert_array_equal(
        found,
        np.array(
            [0.8659643530845642, 0.2738419771194458, 0.03651741147041321, 0.003162277862429619, 0.00011547819303814322],
            np.float32,
        ),
    )


def test_llama3_scales_low_frequencies_only():
    unscaled, found = rope_scaling.unscaled(5e5, 128), Llama3().frequencies(5e5, 128, 1)
    wavelengths = 2 * np.pi / unscaled
    np.testing.assert_array_equal(found[wavelengths < 2048], unscaled[wavelengths < 2048])
    np.testing.assert_array_equal(found[wavelengths > 8192], unscaled[wavelengths > 8192] / 8)
    between = (wavelengths > 2048) & (wavelengths < 8192)
    assert between.sum() == 6 and (found[between] < unscaled[between]).all()
    assert (found[between] > unscaled[between] / 8).all()


def test_linear_divides_all_frequencies():
    np.testing.assert_array_equal(Linear(4.0).frequencies(1e4, 64, 1), rope_scaling.unscaled(1e4, 64) / 4)


def test_dynamic_scales_with_length_beyond_pretraining():
    scaling = Dynamic(2.0, original_max_length=100)
    unscaled = rope_scaling.unscaled(1e4, 64)
    for length in (1, 100):
        np.testing.assert_array_equal(scaling.frequencies(1e4, 64, np.int32(length)), unscaled)
    base = 1e4 * (2.0 * 300 / 100 - 1) ** (64 / 62)
    np.testing.assert_allclose(
        scaling.frequencies(1e4, 64, np.int32(300)), rope_scaling.unscaled(base, 64), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"attention_scale": 0.7}, 0.7),
        ({"mscale": 0.5, "mscale_all_dim": 2.0}, (0.05 * math.log(4) + 1) / (0.2 * math.log(4) + 1)),
        ({"mscale": 0.5}, 0.1 * math.log(4) + 1),
    ],
)
def test_yarn_attention_factor(changes, expected):
    assert Yarn(4.0, 100, **changes).attention_factor == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(0.5), "Linear.factor=0.5 must be at least 1"),
        (lambda: Linear("2"), "Linear.factor='2' must be a positive number"),
        (lambda: Linear(math.inf), "Linear.factor=inf must be a positive number"),
        (lambda: Dynamic(2.0, 0), "Dynamic.original_max_length=0 must be a positive integer"),
        (lambda: Dynamic(2.0, 10.5), "Dynamic.original_max_length=10.5 must be a positive integer"),
        (lambda: Llama3(low_freq_factor=4), "low_freq_factor=4 must be less than high_freq_factor"),
        (lambda: Yarn(2.0, 10, beta_fast=1), "beta_fast=1 must be greater than beta_slow"),
        (lambda: Yarn(2.0, 10, attention_scale=0), "attention_scale=0 must be a positive number"),
        (lambda: Yarn(2.0, 10, truncate=1), "truncate=1 must be True or False"),
    ],
)
def test_invalid_scalings_raise(make, message):
    with pytest.raises(UserError, match=message):
        make()


def _config(transformers, theta, size, scaling, length=64):
    return transformers.LlamaConfig(
        head_dim=size, rope_theta=theta, rope_scaling=scaling, max_position_embeddings=length, hidden_size=7 * size
    )


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parity
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (None, None),
        ({"rope_type": "linear", "factor": 3.0}, Linear(3.0)),
        (LLAMA3 | {"original_max_position_embeddings": 64}, Llama3(original_max_length=64)),
        (LLAMA3 | {"original_max_position_embeddings": 8192}, Llama3()),
        (YARN, Yarn(4.0, 64)),
        (YARN | {"beta_fast": 16, "beta_slow": 2, "truncate": False}, Yarn(4.0, 64, 16, 2, truncate=False)),
        (YARN | {"mscale": 0.5, "mscale_all_dim": 2.0}, Yarn(4.0, 64, mscale=0.5, mscale_all_dim=2.0)),
        (YARN | {"attention_factor": 0.7}, Yarn(4.0, 64, attention_scale=0.7)),
    ],
)
def test_frequencies_equal_transformers(theirs, ours):
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    for theta in THETAS:
        for size in SIZES:
            config = _config(transformers, theta, size, theirs)
            rotary = LlamaRotaryEmbedding(config)
            found = ours.frequencies(theta, size, 1) if ours else rope_scaling.unscaled(theta, size)
            expected = rotary.inv_freq.numpy()
            # Equal except for the last bit where torch rounds the power differently. A difference of nearly equal
            # numbers may double this error.
            np.testing.assert_allclose(found, expected, rtol=2**-21, atol=0)
            assert np.mean(found == expected) >= (0.8 if size > 10 else 0.6), (theta, size)
            if ours:
                assert ours.attention_factor == pytest.approx(rotary.attention_scaling, rel=1e-12)
