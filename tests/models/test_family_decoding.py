"""Decoding of all families: steps over a cache against whole rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import (
    FAMILIES,
    example_batch,
    logits,
    parametrize_families,
    random_model,
    scanned,
    tokens,
)

from t5x_like.decoding.start import left_pad

ALL = list(FAMILIES)


@parametrize_families(lambda family: family.is_encoder_decoder)
def test_decode_steps_match_teacher_forcing(name):
    family = FAMILIES[name]
    config = scanned(family.config) if ALL.index(name) % 2 else family.config
    model, batch = random_model(config), example_batch(family)
    batch["encoder_input_tokens"][1, 4:] = 0

    @jax.jit
    def decode(model):
        # The cache has one position more than is used: later positions must not change the result.
        cache = model.init_cache(2, 7, model.encode(batch))
        states = []
        for index in range(6):
            state, cache = model.decode_step(batch["decoder_input_tokens"][:, index : index + 1], cache, index)
            states.append(state)
        return model.unembed(jnp.concatenate(states, axis=1))

    np.testing.assert_allclose(decode(model), logits(model, batch), atol=2e-5)


@pytest.mark.parametrize("layout", ["scanned", "unrolled"])
@parametrize_families(lambda family: family.stacks == ("decoder",))
def test_prefill_and_decode_steps_match_whole_rows(name, layout):
    model = random_model(dataclasses.replace(FAMILIES[name].config, scan_layers=layout == "scanned"))
    whole, lengths = tokens(2, 9), np.array([5, 2])
    prompts = {
        "decoder_input_tokens": whole[:, :5],
        "decoder_segment_ids": (np.arange(5) < lengths[:, None]).astype(np.int32),
    }

    @jax.jit
    def decode(model, following, cache, index):
        state, cache = model.decode_step(following, cache, index)
        return model.unembed(state)[:, 0], cache

    @jax.jit
    def prefill(model):
        state, cache = model.prefill(left_pad(prompts), 10)
        return model.unembed(state)[:, 0], cache

    found, cache = prefill(model)
    expected = np.asarray(logits(model, {"decoder_input_tokens": whole}))
    np.testing.assert_allclose(found, expected[np.arange(2), lengths - 1], atol=2e-5)
    for step in range(4):
        positions = lengths[:, None] + step
        found, cache = decode(model, np.take_along_axis(whole, positions, axis=1), cache, 5 + step)
        wanted = np.take_along_axis(expected, positions[:, :, None], axis=1)[:, 0]
        np.testing.assert_allclose(found, wanted, atol=2e-5)


@pytest.mark.parametrize("name", ["gpt3", "mistral", "t5_decoder", "t5_1_1", "bart"])
def test_steps_of_several_positions_of_which_some_are_kept(name):
    """Wrong guesses that are not kept leave no trace, also in the ring of a window, and shorter steps follow."""
    family = FAMILIES[name]
    config = scanned(family.config) if ALL.index(name) % 2 else family.config
    model, whole, lengths, first = random_model(config), tokens(2, 15), np.array([5, 2]), 5
    batch = example_batch(family) | {"decoder_input_tokens": whole}
    if family.is_encoder_decoder:
        lengths, first = np.array([0, 0]), 0
        cache = jax.jit(lambda model: model.init_cache(2, 15, model.encode(batch)))(model)
    else:
        prompts = {
            "decoder_input_tokens": whole[:, :5],
            "decoder_segment_ids": (np.arange(5) < lengths[:, None]).astype(np.int32),
        }
        _, cache = jax.jit(lambda model: model.prefill(left_pad(prompts), 15, num_positions=3))(model)
    expected, index = np.asarray(logits(model, batch)), first

    @jax.jit
    def decode(model, following, cache, index):
        states, cache = model.decode_step(following, cache, index)
        return model.unembed(states), cache

    for guessed, kept in ((3, 1), (3, 2), (3, 3), (1, 1), (3, 1)):
        positions = lengths[:, None] + index - first + np.arange(guessed)
        following = np.take_along_axis(whole, positions, axis=1)
        following[:, kept:] = (following[:, kept:] + 7) % config.vocab_size
        found, cache = decode(model, following, cache, index)
        wanted = np.take_along_axis(expected, positions[:, :kept, None], axis=1)
        np.testing.assert_allclose(found[:, :kept], wanted, atol=2e-5)
        index += kept
