"""Greedy generation and left padding, with models whose outputs are known."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, random_model, tokens

from t5x_like.decoding.generate import generate
from t5x_like.decoding.score import score
from t5x_like.decoding.settings import Decoding
from t5x_like.decoding.start import left_pad

VOCAB = 12


def greedy(model, batch, max_length, bos_id=0, eos_ids=(1,)):
    """Returns the only text per row."""
    found = generate(model, batch, Decoding(max_length=max_length, bos_id=bos_id, eos_ids=eos_ids))
    return jax.tree.map(lambda x: x[:, 0], found)


@dataclasses.dataclass
class CountDown:
    """Generates the first input token and counts down to EOS (id 1). The cache counts the calls."""

    config = types.SimpleNamespace(compute_dtype="float32", adapters=())

    def encode(self, batch):
        return batch["encoder_input_tokens"][:, 0]

    def init_cache(self, batch_size, max_length, encoded):
        return {"first": encoded, "calls": jnp.zeros((), jnp.int32)}

    def decode_step(self, tokens, cache, index):
        next_token = jnp.where(index == 0, cache["first"], tokens[:, 0] - 1)
        return jax.nn.one_hot(next_token, VOCAB)[:, None] * 3.0, cache | {"calls": cache["calls"] + 1}

    def unembed(self, hidden):
        return hidden


def test_decodes_until_eos_and_pads_with_zero():
    batch = {"encoder_input_tokens": jnp.array([[4, 9], [1, 9], [9, 9]])}
    generated = jax.jit(lambda batch: greedy(CountDown(), batch, max_length=5))(batch)
    np.testing.assert_array_equal(generated.tokens, [[4, 3, 2, 1, 0], [1, 0, 0, 0, 0], [9, 8, 7, 6, 5]])
    log_probability = 3.0 - np.log(np.exp(3.0) + VOCAB - 1)
    np.testing.assert_allclose(generated.log_probability, log_probability * np.array([4, 1, 5]), rtol=1e-5)


def test_first_decoder_input_is_bos():
    class Repeat(CountDown):
        def decode_step(self, tokens, cache, index):
            return jax.nn.one_hot(tokens, VOCAB) * 3.0, cache

    batch = {"encoder_input_tokens": jnp.array([[4]])}
    assert greedy(Repeat(), batch, max_length=2, bos_id=7).tokens.tolist() == [[7, 7]]
    assert greedy(Repeat(), batch, max_length=2).tokens.tolist() == [[0, 0]]


def test_stops_once_all_rows_have_ended():
    calls = []

    class RecordCalls(CountDown):
        def decode_step(self, tokens, cache, index):
            jax.debug.callback(lambda _: calls.append(None), index)  # reading the value could wait forever
            return super().decode_step(tokens, cache, index)

    greedy(RecordCalls(), {"encoder_input_tokens": jnp.array([[3], [2]])}, max_length=100)
    jax.effects_barrier()
    assert len(calls) == 3


@dataclasses.dataclass
class RunningSum:
    """Generates the sum of all tokens so far modulo 12. The cache holds the tokens."""

    max_length: int = 100
    compute_dtype = "float32"
    adapters = ()

    @property
    def config(self):
        return self

    def prefill(self, batch, cache_length):
        tokens = batch["decoder_input_tokens"]
        return self.of_sum(tokens), jnp.pad(tokens, ((0, 0), (0, cache_length - tokens.shape[1])))

    def decode_step(self, tokens, cache, index):
        cache = jax.lax.dynamic_update_slice(cache, tokens, (0, index))
        return self.of_sum(jnp.where(jnp.arange(cache.shape[1]) <= index, cache, 0)), cache

    def of_sum(self, tokens):
        return jax.nn.one_hot(jnp.sum(tokens, axis=1) % VOCAB, VOCAB)[:, None] * 3.0

    def unembed(self, hidden):
        return hidden


PROMPTS = {
    "decoder_input_tokens": jnp.array([[2, 3, 4], [7, 9, 9], [5, 8, 9]]),
    "decoder_segment_ids": jnp.array([[1, 1, 1], [1, 0, 0], [1, 1, 2]]),
}


def test_prompts_of_different_lengths_are_continued():
    generated = jax.jit(lambda batch: greedy(RunningSum(), batch, max_length=4))(PROMPTS)
    # 2+3+4 = 9, 18 = 6, 24 = 0, 24 = 0; 7, 14 = 2, 16 = 4, 20 = 8; 5+8 = 13 = 1, which is EOS.
    np.testing.assert_array_equal(generated.tokens, [[9, 6, 0, 0], [7, 2, 4, 8], [1, 0, 0, 0]])
    log_probability = 3.0 - np.log(np.exp(3.0) + VOCAB - 1)
    np.testing.assert_allclose(generated.log_probability, log_probability * np.array([4, 4, 1]), rtol=1e-5)


def test_rows_end_at_the_models_max_length():
    generated = greedy(RunningSum(max_length=4), PROMPTS, max_length=4)
    # At most four tokens are read; the last generated one is not.
    np.testing.assert_array_equal(generated.tokens, [[9, 6, 0, 0], [7, 2, 4, 8], [1, 0, 0, 0]])
    generated = greedy(RunningSum(max_length=3), PROMPTS, max_length=4)
    np.testing.assert_array_equal(generated.tokens, [[9, 0, 0, 0], [7, 2, 4, 0], [1, 0, 0, 0]])


def test_left_pad_aligns_the_ends_of_prompts():
    found = left_pad(PROMPTS | {"decoder_prefix": jnp.array([[1, 1, 0], [1, 0, 0], [1, 0, 0]])})
    np.testing.assert_array_equal(found["decoder_input_tokens"], [[2, 3, 4], [0, 0, 7], [0, 5, 8]])
    np.testing.assert_array_equal(found["decoder_positions"], [[0, 1, 2], [0, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(found["decoder_segment_ids"], [[1, 1, 1], [0, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(found["decoder_prefix"], [[1, 1, 0], [0, 0, 1], [0, 1, 0]])


def test_left_pad_keeps_full_rows_and_makes_empty_rows_a_zero():
    rows = {"decoder_input_tokens": jnp.array([[2, 3], [4, 5]])}
    np.testing.assert_array_equal(left_pad(rows)["decoder_input_tokens"], [[2, 3], [4, 5]])
    empty = left_pad({"decoder_input_tokens": jnp.zeros((1, 2), int), "decoder_segment_ids": jnp.zeros((1, 2), int)})
    np.testing.assert_array_equal(empty["decoder_segment_ids"], [[0, 1]])


def test_left_pad_removes_targets():
    weights = jnp.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]])  # the last row has no targets
    found = left_pad(PROMPTS | {"decoder_loss_weights": weights})
    np.testing.assert_array_equal(found["decoder_input_tokens"], [[0, 2, 3], [0, 0, 7], [0, 5, 8]])


def test_lengths_include_eos_of_any_id():
    batch = {"encoder_input_tokens": jnp.array([[4, 9], [1, 9], [9, 9]])}
    decoding = Decoding(max_length=5, bos_id=0, eos_ids=(1,))
    generated = jax.device_get(generate(CountDown(), batch, decoding))
    assert generated.lengths.tolist() == [[4], [1], [5]]
    assert generated.tokens.tolist() == [[[4, 3, 2, 1, 0]], [[1, 0, 0, 0, 0]], [[9, 8, 7, 6, 5]]]
    decoding = Decoding(max_length=3, bos_id=0, eos_ids=(0,))
    ends_in_zero = generate(CountDown(), {"encoder_input_tokens": jnp.array([[2]])}, decoding)
    assert ends_in_zero.lengths.tolist() == [[3]] and ends_in_zero.tokens.tolist() == [[[2, 1, 0]]]


# ---- real models ---------------------------------------------------------------------------------------------------

RULES = dict(max_length=6, eos_ids=(3, 4, 5, 6), bos_id=0, no_repeat_ngram_size=2, repetition_penalty=1.2)
SEARCHES = {"sampled": Decoding(temperature=0.8, samples=3, **RULES), "beams": Decoding(beams=3, samples=3, **RULES)}


def teacher_forced(prompts, texts):
    """Returns features of the decoder that score texts after prompts."""
    names = ("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights")
    features = {name: np.zeros((len(texts), max(map(len, prompts)) + 6), np.int32) for name in names}
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        end = len(prompt) + len(text) - 1
        features["decoder_input_tokens"][row, :end] = [*prompt, *text[:-1]]
        features["decoder_target_tokens"][row, :end] = [*prompt[1:], *text]
        features["decoder_loss_weights"][row, len(prompt) - 1 : end] = 1
    return features


@pytest.mark.full
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", ["t5_1_1", "t5_decoder", "gpt2"])
def test_log_probability_is_that_of_scoring(name, search):
    """Rules, temperature and length penalty do not affect it."""
    family, lengths = FAMILIES[name], np.array([5, 2])
    model, valid = random_model(family.config), (np.arange(5) < lengths[:, None]).astype(np.int32)
    inputs = tokens(2, 5, seed=4) * valid
    if family.is_encoder_decoder:
        batch, prompts, inputs_of_score = {"encoder_input_tokens": inputs}, [[0], [0]], {"encoder_input_tokens": inputs}
    else:
        batch = {"decoder_input_tokens": inputs, "decoder_segment_ids": valid}
        prompts, inputs_of_score = [row[:length] for row, length in zip(inputs, lengths, strict=True)], {}
    if name == "t5_decoder":  # a prefix language model
        batch["decoder_prefix"], inputs_of_score["decoder_prefix"] = valid, np.pad(valid, ((0, 0), (0, 6)))
    run = jax.jit(lambda model: generate(model, batch, SEARCHES[search], jax.random.key(0)))
    found = jax.device_get(run(model))
    assert len(set(np.ravel(found.lengths))) > 1
    for sample in range(3):
        texts = [row[:length] for row, length in zip(found.tokens[:, sample], found.lengths[:, sample], strict=True)]
        expected = score(model, inputs_of_score | teacher_forced(prompts, texts))
        np.testing.assert_array_equal(expected.tokens, found.lengths[:, sample])
        np.testing.assert_allclose(found.log_probability[:, sample], expected.log_probability, rtol=2e-5)
