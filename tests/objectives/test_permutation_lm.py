"""Language modeling with XLNet in the order of the text: values, order and weights by hand."""

import jax
import numpy as np
import pytest
from objective_cases import CASES, terms_of

from t5x_like.objectives.permutation_lm import PermutationLM, SequentialLM

CASE = CASES["sequential_lm"]
OBJECTIVE = CASE.objective
# Two texts in the first row.
TOKENS = np.array([[7, 8, 3, 9, 11, 0], [12, 13, 0, 0, 0, 0]], np.int32)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0]], np.int32)
PREDICTED = [(0, 1), (0, 2), (0, 4), (1, 1)]


def batch_of(tokens):
    return {"encoder_input_tokens": tokens, "encoder_segment_ids": SEGMENTS}


def test_each_token_is_predicted_from_the_tokens_of_its_text_before_it():
    """The reference predicts one token at a time, of a text that ends with it."""
    params, expected = CASE.params(), 0.0
    head = params["objective"]["permutation_lm"]
    for row, at in PREDICTED:
        start = int(np.argmax(SEGMENTS[row] == SEGMENTS[row, at]))
        text = TOKENS[row : row + 1, start : at + 1].copy()
        text[0, -1] = 30  # the target does not see itself
        read = {"encoder_input_tokens": text, "encoder_ranks": np.arange(text.shape[1], dtype=np.int32)[None]}
        hidden = params["model"]({**read, "target_positions": np.array([[at - start]])}).hidden
        expected -= jax.nn.log_softmax(head.logits(params["model"], hidden))[0, 0, TOKENS[row, at]]
    found = terms_of(OBJECTIVE, params, batch_of(TOKENS))
    np.testing.assert_allclose(found.sums["permutation_lm"], expected, rtol=1e-5)
    np.testing.assert_allclose(found.metrics["loss"], (expected, len(PREDICTED)), rtol=1e-5)


def test_weights_omit_padding_and_the_first_token_of_each_text():
    weights = OBJECTIVE.weights(batch_of(TOKENS))["permutation_lm"]
    assert list(zip(*np.nonzero(np.asarray(weights)), strict=True)) == PREDICTED


def test_states_do_not_depend_on_the_token_itself_or_later_ones():
    changed = TOKENS.copy()
    changed[0, 1] = 20
    first, second = (OBJECTIVE.run(CASE.params(), batch_of(tokens)).hidden for tokens in (TOKENS, changed))
    difference = np.abs(np.asarray(first - second)).max(axis=-1)
    assert [place for place in PREDICTED if difference[place] > 1e-6] == [(0, 2)]


@pytest.mark.parametrize("objective", [PermutationLM, SequentialLM])
def test_negative_z_loss_raises(objective):
    with pytest.raises(ValueError, match="z_loss=-1"):
        objective(z_loss=-1)
