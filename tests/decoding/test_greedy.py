"""Greedy decoding on networks small enough to know their answers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.decoding.greedy import greedy
from t5x_like.decoding.prompts import left_pad

VOCAB = 12


@dataclasses.dataclass
class CountsDown:
    """Says first input, then one less each time, until EOS (id 1); the cache counts the calls."""

    def encode(self, batch):
        return batch["encoder_input_tokens"][:, 0]

    def init_cache(self, batch_size, max_length, encoded):
        return {"first": encoded, "calls": jnp.zeros((), jnp.int32)}

    def decode_step(self, tokens, cache, index):
        following = jnp.where(index == 0, cache["first"], tokens[:, 0] - 1)
        return jax.nn.one_hot(following, VOCAB)[:, None] * 3.0, cache | {"calls": cache["calls"] + 1}

    def unembed(self, hidden):
        return hidden


def test_decodes_until_eos_and_pads_with_zero():
    batch = {"encoder_input_tokens": jnp.array([[4, 9], [1, 9], [9, 9]])}
    generated = jax.jit(lambda batch: greedy(CountsDown(), batch, max_length=5))(batch)
    np.testing.assert_array_equal(generated.tokens, [[4, 3, 2, 1, 0], [1, 0, 0, 0, 0], [9, 8, 7, 6, 5]])
    log_probability = 3.0 - np.log(np.exp(3.0) + VOCAB - 1)
    np.testing.assert_allclose(generated.log_probability, log_probability * np.array([4, 1, 5]), rtol=1e-5)


def test_answers_begin_with_the_bos_that_is_given():
    class Repeats(CountsDown):
        def decode_step(self, tokens, cache, index):
            return jax.nn.one_hot(tokens, VOCAB) * 3.0, cache

    batch = {"encoder_input_tokens": jnp.array([[4]])}
    assert greedy(Repeats(), batch, max_length=2, bos_id=7).tokens.tolist() == [[7, 7]]
    assert greedy(Repeats(), batch, max_length=2).tokens.tolist() == [[0, 0]]


def test_stops_as_soon_as_every_row_has_ended():
    calls = []

    class Watched(CountsDown):
        def decode_step(self, tokens, cache, index):
            jax.debug.callback(lambda index: calls.append(int(index)), index)
            return super().decode_step(tokens, cache, index)

    greedy(Watched(), {"encoder_input_tokens": jnp.array([[3], [2]])}, max_length=100)
    jax.effects_barrier()
    assert sorted(calls) == [0, 1, 2]


@dataclasses.dataclass
class AddsUp:
    """Says the sum of all tokens so far modulo 12, over a cache that holds the tokens themselves."""

    max_length: int = 100

    @property
    def config(self):
        return self

    def prefill(self, batch, cache_length):
        tokens = batch["decoder_input_tokens"]
        return jnp.pad(tokens, ((0, 0), (0, cache_length - tokens.shape[1])))

    def decode_step(self, tokens, cache, index):
        cache = jax.lax.dynamic_update_slice(cache, tokens, (0, index))
        total = jnp.sum(jnp.where(jnp.arange(cache.shape[1]) <= index, cache, 0), axis=1)
        return jax.nn.one_hot(total % VOCAB, VOCAB)[:, None] * 3.0, cache

    def unembed(self, hidden):
        return hidden


PROMPTS = {
    "decoder_input_tokens": jnp.array([[2, 3, 4], [7, 9, 9], [5, 8, 9]]),
    "decoder_segment_ids": jnp.array([[1, 1, 1], [1, 0, 0], [1, 1, 2]]),
}


def test_prompts_of_different_lengths_are_continued():
    generated = jax.jit(lambda batch: greedy(AddsUp(), batch, max_length=4))(PROMPTS)
    # 2+3+4 = 9, 18 = 6, 24 = 0, 24 = 0; 7, 14 = 2, 16 = 4, 20 = 8; 5+8 = 13 = 1, which is EOS.
    np.testing.assert_array_equal(generated.tokens, [[9, 6, 0, 0], [7, 2, 4, 8], [1, 0, 0, 0]])
    log_probability = 3.0 - np.log(np.exp(3.0) + VOCAB - 1)
    np.testing.assert_allclose(generated.log_probability, log_probability * np.array([4, 4, 1]), rtol=1e-5)


def test_a_row_ends_with_the_network_s_positions():
    generated = greedy(AddsUp(max_length=4), PROMPTS, max_length=4)
    # Four tokens are read at most; the one said last is not.
    np.testing.assert_array_equal(generated.tokens, [[9, 6, 0, 0], [7, 2, 4, 8], [1, 0, 0, 0]])
    generated = greedy(AddsUp(max_length=3), PROMPTS, max_length=4)
    np.testing.assert_array_equal(generated.tokens, [[9, 0, 0, 0], [7, 2, 4, 0], [1, 0, 0, 0]])


def test_prompts_end_where_they_are_to_be_continued():
    found = left_pad(PROMPTS | {"decoder_prefix": jnp.array([[1, 1, 0], [1, 0, 0], [1, 0, 0]])})
    np.testing.assert_array_equal(found["decoder_input_tokens"], [[2, 3, 4], [0, 0, 7], [0, 5, 8]])
    np.testing.assert_array_equal(found["decoder_positions"], [[0, 1, 2], [0, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(found["decoder_segment_ids"], [[1, 1, 1], [0, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(found["decoder_prefix"], [[1, 1, 0], [0, 0, 1], [0, 1, 0]])


def test_full_rows_are_as_they_are_and_an_empty_one_is_a_zero():
    rows = {"decoder_input_tokens": jnp.array([[2, 3], [4, 5]])}
    np.testing.assert_array_equal(left_pad(rows)["decoder_input_tokens"], [[2, 3], [4, 5]])
    empty = left_pad({"decoder_input_tokens": jnp.zeros((1, 2), int), "decoder_segment_ids": jnp.zeros((1, 2), int)})
    np.testing.assert_array_equal(empty["decoder_segment_ids"], [[0, 1]])


def test_what_is_to_be_predicted_is_no_part_of_a_prompt():
    weights = jnp.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]])  # nothing is to be predicted of the last row
    found = left_pad(PROMPTS | {"decoder_loss_weights": weights})
    np.testing.assert_array_equal(found["decoder_input_tokens"], [[0, 2, 3], [0, 0, 7], [0, 5, 8]])


def test_lengths_count_what_was_generated_and_texts_end_before_eos():
    batch = {"encoder_input_tokens": jnp.array([[4, 9], [1, 9], [9, 9]])}
    generated = jax.device_get(greedy(CountsDown(), batch, max_length=5))
    assert generated.lengths.tolist() == [4, 1, 5]
    assert generated.token_ids(1) == [[4, 3, 2], [], [9, 8, 7, 6, 5]]
    ends_in_zero = greedy(CountsDown(), {"encoder_input_tokens": jnp.array([[2]])}, max_length=3, eos_id=0)
    assert ends_in_zero.lengths.tolist() == [3] and jax.device_get(ends_in_zero).token_ids(7) == [[2, 1, 0]]
