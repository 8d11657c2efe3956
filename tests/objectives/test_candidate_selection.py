"""Candidate selection: scores, loss and predictions by hand, and the states that the head reads."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, random_model

from t5x_like.data import batches
from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import heads, passes
from t5x_like.objectives.base import RunOptions
from t5x_like.objectives.candidate_selection import NAME, CandidateSelection

OBJECTIVE = CandidateSelection(head=heads.EachToken(dropout_rate=0.0))
# Row 0 has a question, two candidates and a sentence; row 1 a question and three candidates; row 2 no known answer.
ROWS = {
    "inputs": [[2, 5, 3, 6, 7, 3, 8, 9], [2, 5, 3, 6, 7, 8, 3, 0], [2, 5, 3, 6, 3, 8, 0, 0]],
    "token_types": [[0] * 8] * 3,
    "global_positions": [[1, 3, 4, 6], [1, 3, 4, 5], [1, 3, 5, 0]],
    "is_candidate": [[0, 1, 1, 0], [0, 1, 1, 1], [0, 1, 0, 0]],
    "targets": [[1], [2], [1]],
}


def batch():
    return batches.from_arrays(OBJECTIVE.features, {name: np.array(rows, np.int32) for name, rows in ROWS.items()})


class Identity:
    """A head whose score is the state."""

    def __call__(self, states, dropout_key=None):
        return states


def test_softmax_is_over_the_candidates_of_a_row():
    scores = np.array([[9.0, 1.0, 2.0, 9.0], [9.0, 0.0, 1.0, 3.0], [9.0, 5.0, 9.0, 9.0]], np.float32)
    found = OBJECTIVE.read({"objective": {NAME: Identity()}}, Outputs(jnp.asarray(scores)[..., None]), batch())
    predicted = OBJECTIVE.predict(found)
    e = np.exp
    expected = [
        [1 / (1 + e(1)), e(1) / (1 + e(1)), 0, 0],
        [1 / (1 + e(1) + e(3)), e(1) / (1 + e(1) + e(3)), e(3) / (1 + e(1) + e(3)), 0],
        [1, 0, 0, 0],
    ]
    np.testing.assert_allclose(predicted["probabilities"], expected, atol=1e-6)
    assert predicted["predictions"].tolist() == [[1], [2], [0]]
    # The label of the last row is not one of its candidates.
    assert OBJECTIVE.target_weights(batch())[NAME].tolist() == [[1], [1], [0]]
    terms = passes.terms(found)
    np.testing.assert_allclose(terms.sums[NAME], -np.log(expected[0][1]) - np.log(expected[1][2]), rtol=1e-6)
    assert [float(each) for each in terms.metrics["accuracy"]] == [2, 2]
    # No candidate has a global token.
    found.rows["is_candidate"] = jnp.zeros_like(found.rows["is_candidate"])
    assert OBJECTIVE.predict(found)["predictions"].tolist() == [[-1], [-1], [-1]]


def test_head_reads_the_states_of_the_global_tokens():
    config = dataclasses.replace(FAMILIES["etc"].config, local_radius=1)
    model = random_model(config)
    params = {"model": model, "objective": OBJECTIVE.init(jax.random.key(0), model)}
    rows = batch()
    options = RunOptions(capture=("encoder/layers/1/hidden",))
    found = jax.jit(lambda params: OBJECTIVE.run(params, rows, options))(params)
    assert list(found.captured) == ["encoder/layers/1/hidden"] and found.hidden.shape == (3, 4, config.embed_dim)
    np.testing.assert_allclose(found.hidden, found.captured["encoder/layers/1/hidden"][:, :4], rtol=1e-6)
    # With the hard mask, the score of a candidate depends on its own tokens first: another token changes it the most.
    changed = rows | {"encoder_input_tokens": np.array(rows["encoder_input_tokens"])}
    changed["encoder_input_tokens"][0, 3] = 11
    with_change = jax.jit(lambda params: OBJECTIVE.run(params, changed))(params).hidden
    difference = np.abs(np.asarray(with_change - found.hidden)).max(axis=2)
    assert difference[0].argmax() == 1 and not difference[1:].any()


def test_invalid_head_and_model_raise():
    with pytest.raises(UserError, match="reads one token per row, but the objective needs each token"):
        CandidateSelection(head=heads.PooledFirstToken())
    with pytest.raises(UserError, match=r"MODEL=@BertConfig\(\): has no global input with a token per candidate"):
        OBJECTIVE.init(jax.random.key(0), random_model(FAMILIES["bert"].config))
