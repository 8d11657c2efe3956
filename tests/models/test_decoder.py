"""What decoder-only models share beyond test_families.py: windows, prefixes, positions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, random_model, scanned, tokens

from t5x_like.decoding.prompts import left_pad
from t5x_like.models.decoder import forward_flops
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.llama import LlamaConfig

GPT2, LLAMA = FAMILIES["gpt2"].config, FAMILIES["llama"].config


@jax.jit
def logits(model, batch):
    return model.unembed(model(batch).hidden)


def influence(config, batch):
    """How much each position's result follows from each input: `[length, length]`, of the first row."""
    model = random_model(config)
    embedded = model.embed(batch)["decoder"]
    jacobian = jax.jit(jax.jacobian(lambda decoder: model.trunk({"decoder": decoder}, batch).hidden[0]))(embedded)
    return np.abs(jacobian[:, :, 0]).max(axis=(1, 3))


# ---- what sees what ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "reach"),
    [
        (dataclasses.replace(LLAMA, attention_windows=(3,)), 2 * 2),
        (dataclasses.replace(GPT2, attention_windows=(1, 3)), 0 + 2),
        (dataclasses.replace(GPT2, num_layers=4, attention_windows=(3, 2)), 2 * (2 + 1)),
        (scanned(GPT2, num_layers=4, attention_windows=(3, 2)), 2 * (2 + 1)),
    ],
    ids=["one for all layers", "in turns", "in two turns", "in two turns, scanned"],
)
def test_windows_limit_how_far_back_the_layers_reach(config, reach):
    found = influence(config, {"decoder_input_tokens": tokens(1, 9)})
    distance = np.arange(9)[:, None] - np.arange(9)
    assert (found[(distance >= 0) & (distance <= reach)] > 0).all()
    assert (found[(distance < 0) | (distance > reach)] == 0).all()


def test_a_prefix_is_seen_by_the_whole_segment_alone():
    prefix = np.array([[1, 1, 1, 0, 0, 1, 1, 0, 0]])
    segments = np.array([[1] * 5 + [2] * 4])
    found = influence(
        GPT2, {"decoder_input_tokens": tokens(1, 9)} | {"decoder_prefix": prefix, "decoder_segment_ids": segments}
    )
    places = np.arange(9)
    seen = (places[None] <= places[:, None]) | (prefix == 1)
    np.testing.assert_array_equal(found > 0, seen & (segments.T == segments))


@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["learnt", "rotated"])
def test_positions_matter(config):
    model, batch = random_model(config), {"decoder_input_tokens": tokens(2, 9)}
    counted = np.broadcast_to(np.arange(9), (2, 9))
    np.testing.assert_array_equal(logits(model, batch | {"decoder_positions": counted}), logits(model, batch))
    assert np.abs(logits(model, batch | {"decoder_positions": counted[:, ::-1]}) - logits(model, batch)).max() > 0.1


# ---- decoding ----------------------------------------------------------------------------------------------------


def test_a_prompt_that_is_a_prefix_is_read_as_one():
    model, whole = random_model(scanned(GPT2)), tokens(2, 6)
    prefix = {"decoder_prefix": np.array([[1] * 4 + [0] * 2] * 2)}

    @jax.jit
    def decode(model):
        prompts = {"decoder_input_tokens": whole[:, :4], "decoder_prefix": np.ones((2, 4), np.int32)}
        cache = model.prefill(left_pad(prompts), 6)
        first, cache = model.decode_step(whole[:, 4:5], cache, 4)
        second, _ = model.decode_step(whole[:, 5:], cache, 5)
        return model.unembed(jnp.concatenate([first, second], axis=1))

    expected = logits(model, {"decoder_input_tokens": whole} | prefix)[:, 4:]
    np.testing.assert_allclose(decode(model), expected, atol=2e-5)
    assert np.abs(expected - logits(model, {"decoder_input_tokens": whole})[:, 4:]).max() > 0.01


# ---- captures, counts, configuration ------------------------------------------------------------------------------


def test_captured_probabilities_of_a_window_are_a_band():
    model = random_model(FAMILIES["gpt3"].config)
    name = "decoder/layers/1/attention/probabilities"
    captured = model({"decoder_input_tokens": tokens(2, 9)}, capture=(name,)).captured[name]
    assert (captured > 0).sum() == 2 * 4 * (1 + 8 * 2)  # two positions for each query but the first


def test_flops_count_windows_as_windows():
    banded = dataclasses.replace(GPT2, attention_windows=(None, 3))
    # Layer 1 attends to 3 instead of 10 positions: 2 products of 12 values for each of 10 queries, two operations each.
    assert forward_flops(GPT2, 1, 10) - forward_flops(banded, 1, 10) == 2 * 2 * 12 * 10 * (10 - 3)
    assert forward_flops(GPT2, 1, 2) == forward_flops(banded, 1, 2)


@pytest.mark.parametrize(
    ("make_config", "changes", "message"),
    [
        (GPTConfig, {"num_heads": 0}, r"GPTConfig.num_heads=0 must be a whole number"),
        (GPTConfig, {"norm_position": "middle"}, r"GPTConfig.norm_position='middle' must be one of"),
        (GPTConfig, {"attention_windows": (None, 0)}, r"attention_windows=\(None, 0\): 0 must be a whole number"),
        (GPTConfig, {"attention_windows": [None] * 5}, "their number must divide num_layers=12"),
        (GPTConfig, {"attention_windows": ()}, "their number must divide num_layers=12"),
        (GPTConfig, {"attention_dropout_rate": 1.0}, r"attention_dropout_rate=1.0 must be in \[0, 1\)"),
        (LlamaConfig, {"num_kv_heads": 5}, "num_kv_heads=5 must divide num_heads=32"),
        (LlamaConfig, {"head_dim": 7}, "head_dim=7 must be even"),
        (LlamaConfig, {"rope_theta": 0.0}, "rope_theta=0.0 must be positive"),
        (LlamaConfig, {"activations": ("swiglu",)}, "swiglu"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(make_config, changes, message):
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


def test_configurations_fill_in_what_is_left_open():
    assert LlamaConfig(num_heads=4).num_kv_heads == 4
    assert GPTConfig(attention_windows=[None, 8]).attention_windows == (None, 8)
