"""Scores against NumPy in float64, their chunks, and their agreement with the loss."""

import jax
import numpy as np
import pytest

from t5x_like.decoding.score import score_hidden
from t5x_like.partitioning import Partitioner

ROWS, LENGTH, VOCAB, EMBED = 4, 8, 23, 6
POSITION_BYTES = 4 * VOCAB * ROWS


def make_inputs():
    """Returns hidden states, the embeddings, and targets with weights. Row 1 is greedy, row 3 has no targets."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(ROWS, LENGTH, EMBED)).astype(np.float32)
    kernel = rng.normal(size=(EMBED, VOCAB)).astype(np.float32)
    targets = rng.integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    weights = rng.integers(0, 2, (ROWS, LENGTH)).astype(np.int32)
    best = (hidden @ kernel).argmax(-1)
    targets[1] = np.where(weights[1], best[1], targets[1])
    targets[0, 0], weights[0, 0] = (best[0, 0] + 1) % VOCAB, 1
    targets[2], weights[2] = best[2], 1
    targets[2, -1] = (best[2, -1] + 1) % VOCAB  # only the last token is not the most probable one
    weights[3] = 0
    return hidden, kernel, targets, weights


def scored(hidden, kernel, targets, weights, **options):
    batch = {"decoder_target_tokens": targets, "decoder_loss_weights": weights}
    return score_hidden(hidden, lambda hidden: hidden @ kernel, batch, per_position=True, **options)


def check(found, hidden, kernel, targets, weights):
    logits = hidden.astype(np.float64) @ kernel.astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    positions = np.take_along_axis(log_p, targets[..., None], -1)[..., 0] * weights
    np.testing.assert_allclose(found.positions, positions, rtol=1e-5)
    np.testing.assert_allclose(found.log_probability, positions.sum(1), rtol=1e-5)
    np.testing.assert_array_equal(found.tokens, weights.sum(1))
    np.testing.assert_array_equal(found.greedy, [False, True, False, True])


@pytest.mark.parametrize("positions_per_chunk", [LENGTH, 3, 1])
def test_scores_equal_numpy(positions_per_chunk):
    inputs = make_inputs()
    check(scored(*inputs, budget_bytes=POSITION_BYTES * positions_per_chunk), *inputs)


def test_positions_of_chunks_keep_their_order_on_several_devices():
    inputs = make_inputs()
    partitioner = Partitioner(rules="fsdp_tp_sp", ici={"fsdp": 4, "sequence": 2})
    # Two chunks of the four positions that a device has of a row.
    check(partitioner.jit(lambda *inputs: scored(*inputs, budget_bytes=4 * VOCAB * 2))(*inputs), *inputs)


def test_targets_of_equal_logits_are_greedy_only_if_they_come_first():
    hidden, kernel = np.ones((2, 1, 1), np.float32), np.zeros((1, 3), np.float32)
    found = scored(hidden, kernel, np.array([[0], [1]]), np.ones((2, 1), np.int32))
    np.testing.assert_array_equal(found.greedy, [True, False])
    np.testing.assert_allclose(found.log_probability, np.log([1 / 3, 1 / 3]), rtol=1e-6)


def test_positions_are_returned_only_on_request():
    hidden, kernel, targets, weights = make_inputs()
    batch = {"decoder_target_tokens": targets, "decoder_loss_weights": weights}
    assert jax.jit(lambda batch: score_hidden(hidden, lambda x: x @ kernel, batch))(batch).positions is None
