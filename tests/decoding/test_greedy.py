"""Greedy decoding on a network small enough to know its answer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from t5x_like.decoding.greedy import greedy

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


def test_stops_as_soon_as_every_row_has_ended():
    calls = []

    class Watched(CountsDown):
        def decode_step(self, tokens, cache, index):
            jax.debug.callback(lambda index: calls.append(int(index)), index)
            return super().decode_step(tokens, cache, index)

    greedy(Watched(), {"encoder_input_tokens": jnp.array([[3], [2]])}, max_length=100)
    jax.effects_barrier()
    assert sorted(calls) == [0, 1, 2]
