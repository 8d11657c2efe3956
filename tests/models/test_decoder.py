"""Properties of decoder-only models that test_families.py does not cover: windows, prefixes, positions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, random_model, scanned, tokens

from t5x_like.decoding.start import left_pad
from t5x_like.models.decoder import forward_flops
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.llama import LlamaConfig

GPT2, LLAMA = FAMILIES["gpt2"].config, FAMILIES["llama"].config


@jax.jit
def logits(model, batch):
    return model.unembed(model(batch).hidden)


def influence(config, batch):
    """Returns the sensitivity of each output position to each input position of the first row: `[output input]`."""
    model = random_model(config)
    embedded = model.embed(batch)["decoder"]
    jacobian = jax.jit(jax.jacobian(lambda decoder: model.trunk({"decoder": decoder}, batch).hidden[0]))(embedded)
    return np.abs(jacobian[:, :, 0]).max(axis=(1, 3))


# ---- attention masks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "reach"),
    [
        (dataclasses.replace(LLAMA, attention_windows=(3,)), 2 * 2),
        (dataclasses.replace(GPT2, attention_windows=(1, 3)), 0 + 2),
        (dataclasses.replace(GPT2, num_layers=4, attention_windows=(3, 2)), 2 * (2 + 1)),
        (scanned(GPT2, num_layers=4, attention_windows=(3, 2)), 2 * (2 + 1)),
    ],
    ids=["same window", "alternating", "alternating twice", "alternating twice, scanned"],
)
def test_attention_windows_limit_reach(config, reach):
    found = influence(config, {"decoder_input_tokens": tokens(1, 9)})
    distance = np.arange(9)[:, None] - np.arange(9)
    assert (found[(distance >= 0) & (distance <= reach)] > 0).all()
    assert (found[(distance < 0) | (distance > reach)] == 0).all()


def test_prefix_is_visible_to_its_whole_segment_only():
    prefix = np.array([[1, 1, 1, 0, 0, 1, 1, 0, 0]])
    segments = np.array([[1] * 5 + [2] * 4])
    found = influence(
        GPT2, {"decoder_input_tokens": tokens(1, 9)} | {"decoder_prefix": prefix, "decoder_segment_ids": segments}
    )
    positions = np.arange(9)
    visible = (positions[None] <= positions[:, None]) | (prefix == 1)
    np.testing.assert_array_equal(found > 0, visible & (segments.T == segments))


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["learned", "rotary"])
def test_positions_change_logits(config):
    model, batch = random_model(config), {"decoder_input_tokens": tokens(2, 9)}
    counted = np.broadcast_to(np.arange(9), (2, 9))
    np.testing.assert_array_equal(logits(model, batch | {"decoder_positions": counted}), logits(model, batch))
    assert np.abs(logits(model, batch | {"decoder_positions": counted[:, ::-1]}) - logits(model, batch)).max() > 0.1


# ---- decoding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "t5_decoder"])
def test_prefill_honors_prefix(name):
    model, whole = random_model(scanned(FAMILIES[name].config)), tokens(2, 6)
    prefix = {"decoder_prefix": np.array([[1] * 4 + [0] * 2] * 2)}

    @jax.jit
    def decode(model):
        prompts = {"decoder_input_tokens": whole[:, :4], "decoder_prefix": np.ones((2, 4), np.int32)}
        _, cache = model.prefill(left_pad(prompts), 6)
        first, cache = model.decode_step(whole[:, 4:5], cache, 4)
        second, _ = model.decode_step(whole[:, 5:], cache, 5)
        return model.unembed(jnp.concatenate([first, second], axis=1))

    expected = logits(model, {"decoder_input_tokens": whole} | prefix)[:, 4:]
    np.testing.assert_allclose(decode(model), expected, atol=2e-5)
    assert np.abs(expected - logits(model, {"decoder_input_tokens": whole})[:, 4:]).max() > 0.01


# ---- captures, counts, configuration ------------------------------------------------------------------------------


def test_captured_probabilities_of_window_are_banded():
    model = random_model(FAMILIES["gpt3"].config)
    name = "decoder/layers/1/attention/probabilities"
    captured = model({"decoder_input_tokens": tokens(2, 9)}, capture=(name,)).captured[name]
    assert (captured > 0).sum() == 2 * 4 * (1 + 8 * 2)  # two positions for each query but the first


def test_flops_count_attention_window():
    banded = dataclasses.replace(GPT2, attention_windows=(None, 3))
    # Layer 1 attends to 3 instead of 10 positions: 2 products of 12 features per query and key, 2 operations each.
    long, short = ({"decoder_input_tokens": (1, length)} for length in (10, 2))
    assert forward_flops(GPT2, long) - forward_flops(banded, long) == 2 * 2 * 12 * 10 * (10 - 3)
    assert forward_flops(GPT2, short) == forward_flops(banded, short)


@pytest.mark.parametrize(
    ("make_config", "changes", "message"),
    [
        (GPTConfig, {"num_heads": 0}, r"GPTConfig.num_heads=0: must be a positive integer"),
        (GPTConfig, {"norm_position": "middle"}, r"GPTConfig.norm_position='middle': must be one of"),
        (GPTConfig, {"attention_windows": (None, 0)}, r"attention_windows=\(None, 0\): 0 is not a positive integer"),
        (GPTConfig, {"attention_windows": ()}, r"attention_windows=\(\): empty. Give \(None,\)"),
        (GPTConfig, {"attention_dropout_rate": 1.0}, r"attention_dropout_rate=1.0: must be in \[0, 1\)"),
        (LlamaConfig, {"num_kv_heads": 5}, "num_kv_heads=5: must divide num_heads=32"),
        (LlamaConfig, {"head_dim": 7}, "head_dim=7: must be even"),
        (LlamaConfig, {"rope_theta": 0.0}, "rope_theta=0.0: must be positive"),
        (LlamaConfig, {"activations": ("swiglu",)}, "swiglu"),
    ],
)
def test_invalid_config_raises(make_config, changes, message):
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


def test_config_defaults_and_conversions():
    assert LlamaConfig(num_heads=4).num_kv_heads == 4
    assert GPTConfig(attention_windows=[None, 8]).attention_windows == (None, 8)
