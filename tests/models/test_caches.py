"""Caches of keys and values for decoding: several continuations per row, and windows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, example_batch, random_model, tokens
from lanes import others_are_full

from t5x_like.decoding.start import left_pad

# Rows of three continuations of each of two inputs, after the cache is reordered.
N, ORDER = 3, np.array([2, 0, 2, 3, 5, 4])


def first_cache(model, batch, cache_length):
    """Returns the cache of a batch and its first free slot."""
    if "encoder_input_tokens" in batch:
        return model.init_cache(2, cache_length, model.encode(batch)), 0
    prompts = left_pad(batch)
    return model.prefill(prompts, cache_length + 5)[1], 5


@pytest.mark.parametrize("layout", ["scanned", "unrolled"])
@pytest.mark.parametrize("name", others_are_full(["t5_1_1", "bart", "gpt3", "llama"], ["t5_1_1", "gpt3"]))
def test_repeated_and_reordered_rows_match_whole_rows(name, layout):
    family = FAMILIES[name]
    model = random_model(dataclasses.replace(family.config, scan_layers=layout == "scanned"))
    continuations = tokens(2 * N, 4, seed=1)
    lengths = np.array([5, 2])
    if family.is_encoder_decoder:
        batch = example_batch(family)
        batch["encoder_input_tokens"][1, 4:] = 0
    else:
        rows = (np.arange(5) < lengths[:, None]).astype(np.int32)
        batch = {"decoder_input_tokens": tokens(2, 5) * rows, "decoder_segment_ids": rows}

    @jax.jit
    def decode(model, batch):
        cache, index = first_cache(model, batch, 4)
        cache, states = cache.repeat(N), []
        for step in range(4):
            state, cache = model.decode_step(continuations[:, step : step + 1], cache, index + step)
            states.append(state)
            cache = cache.take(ORDER) if step == 1 else cache
        return model.unembed(jnp.concatenate(states, axis=1))

    found = decode(model, batch)
    # The first two tokens of a row, before it is reordered, equal row `ORDER[i]`'s.
    reordered = np.concatenate([continuations[ORDER, :2], continuations[:, 2:]], axis=1)
    repeated = {key: np.repeat(value, N, axis=0) for key, value in batch.items()}
    logits = jax.jit(lambda model, batch: model.unembed(model(batch).hidden))
    if family.is_encoder_decoder:
        expected = logits(model, repeated | {"decoder_input_tokens": reordered})
    else:
        whole = np.zeros((2 * N, 9), np.int32)
        offsets = np.repeat(lengths, N)[:, None] + np.arange(4)
        whole[:, :5] = repeated["decoder_input_tokens"]
        np.put_along_axis(whole, offsets, reordered, axis=1)
        expected = np.asarray(logits(model, {"decoder_input_tokens": whole}))
        expected = np.take_along_axis(expected, offsets[:, :, None], axis=1)
    np.testing.assert_allclose(found[ORDER, :2], expected[:, :2], atol=2e-5)
    np.testing.assert_allclose(found[:, 2:], expected[:, 2:], atol=2e-5)


@pytest.mark.parametrize(
    ("name", "layout", "lengths"),
    [
        ("mistral", "unrolled", [3, 3]),
        ("mistral", "scanned", [3, 3]),
        ("gpt3", "unrolled", [10, 2]),
        ("gpt3", "scanned", [10, 10]),  # layers of a scan have equal shapes
    ],
)
def test_caches_are_as_long_as_windows(name, layout, lengths):
    """That their contents are right is tested by `test_prefill_and_decode_steps_match_whole_rows` of every family."""
    model = random_model(dataclasses.replace(FAMILIES[name].config, scan_layers=layout == "scanned"))
    _, cache = jax.eval_shape(lambda model: model.prefill(left_pad({"decoder_input_tokens": tokens(2, 5)}), 10), model)
    assert [cache.self_attention.length_of(layer) for layer in (0, 1)] == lengths
