"""Beam search against exhaustive search, and when it stops."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from t5x_like.decoding.generate import generate
from t5x_like.decoding.settings import Decoding

VOCAB, LENGTH, EOS, ROWS = 5, 4, 1, 3
# Prefixes of up to LENGTH - 1 tokens are the nodes of a tree: token t of node n leads to node VOCAB * n + t + 1.
NODES = sum(VOCAB**depth for depth in range(LENGTH))


@struct.dataclass
class Nodes:
    """A cache of the example and the prefix of each row."""

    example: jax.Array
    node: jax.Array

    def repeat(self, n):
        return jax.tree.map(lambda x: jnp.repeat(x, n), self)

    def take(self, rows):
        return jax.tree.map(lambda x: x[rows], self)


@dataclasses.dataclass
class PrefixTable:
    """Logits that depend on the example and the prefix."""

    logits: np.ndarray
    config = types.SimpleNamespace(compute_dtype="float32", adapters=())

    def encode(self, batch):
        return batch["encoder_input_tokens"][:, 0]

    def init_cache(self, batch_size, cache_length, encoded):
        return Nodes(example=encoded, node=jnp.zeros_like(encoded))

    def decode_step(self, tokens, cache, index):
        node = jnp.where(index == 0, 0, VOCAB * cache.node + tokens[:, 0] + 1)
        return jnp.asarray(self.logits)[cache.example, node][:, None], cache.replace(node=node)

    def unembed(self, hidden):
        return hidden


@functools.cache
def table():
    return np.random.default_rng(0).normal(0, 1.5, (ROWS, NODES, VOCAB)).astype(np.float32)


def search(model, **settings):
    """Returns the result on the host."""
    decoding = Decoding(max_length=LENGTH, eos_ids=(EOS,), bos_id=0, **settings)
    batch = {"encoder_input_tokens": jnp.arange(len(model.logits))[:, None]}
    return jax.device_get(jax.jit(lambda batch: generate(model, batch, decoding))(batch))


def all_texts(logits, prefix=(), node=0, total=0.0):
    """Yields every text of a row with its log-probability."""
    log_probabilities = logits[node] - np.log(np.sum(np.exp(logits[node])))
    for token in range(VOCAB):
        text, value = (*prefix, token), total + log_probabilities[token]
        if token == EOS or len(text) == LENGTH:
            yield text, value
        else:
            yield from all_texts(logits, text, VOCAB * node + token + 1, value)


PENALTIES = {
    "none": ({"alpha": 0.0}, lambda length: 1.0),
    "power": ({"alpha": 1.5}, lambda length: length**1.5),
    "gnmt": ({"length_penalty": "gnmt", "alpha": 0.6}, lambda length: ((5 + length) / 6) ** 0.6),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_enough_beams_find_the_best_of_all_texts(name):
    settings, penalty = PENALTIES[name]
    # No step has more than VOCAB * (VOCAB - 1)**3 extensions of open beams, of which `beams` may end.
    found = search(PrefixTable(table()), beams=320, samples=6, early_stopping="never", **settings)
    for row in range(ROWS):
        texts = sorted(all_texts(table()[row]), key=lambda text: -text[1] / penalty(len(text[0])))[:6]
        for sample, (text, log_probability) in enumerate(texts):
            assert found.tokens[row, sample, : found.lengths[row, sample]].tolist() == list(text)
            np.testing.assert_allclose(found.log_probability[row, sample], log_probability, rtol=1e-5)
            np.testing.assert_allclose(found.score[row, sample], log_probability / penalty(len(text)), rtol=1e-5)


def test_log_probability_excludes_rules_and_length_penalty():
    found = search(PrefixTable(table()), beams=3, min_length=2, forced_eos_id=EOS, repetition_penalty=2.0)
    for row in range(ROWS):
        text = tuple(found.tokens[row, 0, : found.lengths[row, 0]].tolist())
        assert len(text) > 2
        np.testing.assert_allclose(found.log_probability[row, 0], dict(all_texts(table()[row]))[text], rtol=1e-5)


@pytest.mark.parametrize(
    ("early_stopping", "alpha", "steps"),
    [
        (True, 2.0, 2),  # two hypotheses are finished
        (False, 2.0, 2),  # -4.2 / 2**2, the penalized best open one, is worse than both
        ("never", 2.0, 3),  # but -4.2 / 4**2 would not be
        (False, 8.0, 4),
    ],
)
def test_search_ends_once_no_open_beam_can_win(early_stopping, alpha, steps):
    steps_run = []

    class RecordSteps(PrefixTable):
        def decode_step(self, tokens, cache, index):
            jax.debug.callback(lambda _: steps_run.append(None), index)
            return super().decode_step(tokens, cache, index)

    logits = np.full((1, NODES, VOCAB), -20.0, np.float32)
    # EOS has log-probability -0.7 at the first step; two tokens have -0.7 and -4.7. Later EOS has -0.03, token 3 -3.5.
    logits[..., EOS], logits[..., 3] = 0.0, -3.5
    logits[:, 0, 2:] = [0.0, -4.0, -8.0]
    search(RecordSteps(logits), beams=2, early_stopping=early_stopping, alpha=alpha)
    jax.effects_barrier()
    assert len(steps_run) == steps
