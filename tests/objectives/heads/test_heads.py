"""Heads: what each form reads, where dropout is applied, initial values, and invalid settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from objective_case import LABELS
from objective_cases import read_terms

from t5x_like.layers import initializers
from t5x_like.models.bert import BertConfig
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import heads
from t5x_like.objectives.heads.head_modules import Layers
from t5x_like.objectives.passes import total_weights
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_regression import SequenceRegression
from t5x_like.objectives.token_classification import TokenClassification

CONFIG = BertConfig(vocab_size=8, embed_dim=6, mlp_dim=8, num_heads=2, head_dim=3, num_layers=1, dropout_rate=0.3)
STATES = np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32)
SEGMENTS = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], np.int32)


@pytest.mark.parametrize(
    ("form", "positions"),
    [
        (heads.PooledFirstToken(), [[0], [0]]),
        (heads.DenseFirstToken(), [[0], [0]]),
        (heads.LastToken(), [[2], [0]]),
        (heads.DecoderLastToken(), [[2], [0]]),
        (heads.EachToken(), [[0, 1, 2, 3], [0, 1, 2, 3]]),
        (heads.EachDecoderToken(), [[0, 1, 2, 3], [0, 1, 2, 3]]),
    ],
    ids=lambda form: type(form).__name__,
)
def test_forms_read_their_positions(form, positions):
    read = form.read(STATES, {"decoder_segment_ids": SEGMENTS})
    np.testing.assert_array_equal(read, np.take_along_axis(STATES, np.array(positions)[..., None], axis=1))


def test_dropout_is_applied_where_transformers_applies_it():
    """Each case: the form, and the tensors that are dropped, as functions of the head and of the states."""
    cases = [
        (heads.PooledFirstToken(), [lambda head, x: jnp.tanh(head.pooler(x))]),
        (heads.DenseFirstToken(), [lambda head, x: x, lambda head, x: jnp.tanh(head.dense(x))]),
        (heads.DecoderLastToken(), [lambda head, x: x, lambda head, x: jnp.tanh(head.dense(x))]),
        (heads.EachToken(), [lambda head, x: x]),
        (heads.EachDecoderToken(), [lambda head, x: x]),
    ]
    for form, expected in cases:
        head, dropped, keys = form.make(CONFIG, 3, key=jax.random.key(0)), [], []
        assert head.dropout.rate == 0.3

        def record(x, key, dropped=dropped, keys=keys):
            dropped.append(x)
            keys.append(tuple(jax.random.key_data(key).tolist()))
            return x

        head.dropout = record
        head(STATES, jax.random.key(1))
        assert len(set(keys)) == len(dropped) == len(expected), form
        for found, function in zip(dropped, expected, strict=True):
            np.testing.assert_array_equal(found, function(head, STATES))
    assert heads.LastToken().make(CONFIG, 3, key=jax.random.key(0)).dropout.rate == 0.0
    assert heads.EachToken(dropout_rate=0.0).make(CONFIG, 3, key=jax.random.key(0)).dropout.rate == 0.0


def test_own_settings_give_a_head():
    class Own(heads.HeadWithDropout):
        token = "last"
        layers = Layers("hidden", activation=jnp.abs, size=2, bias=False)

    form = Own(dropout_rate=0.5)
    head = form.make(CONFIG, 3, key=jax.random.key(0))
    last = form.read(STATES, {"encoder_segment_ids": SEGMENTS})
    hidden = np.abs(np.stack([STATES[0, 2], STATES[1, 0]]) @ head.hidden.kernel[...])
    np.testing.assert_allclose(head(last)[:, 0], hidden @ head.classifier.kernel[...], rtol=1e-5)
    assert head.dropout.rate == 0.5 and not form.each_token and not head.classifier.has_bias


def test_initial_values_have_the_published_deviation():
    config = BertConfig(vocab_size=8, embed_dim=64, mlp_dim=8, num_heads=2, head_dim=32, num_layers=1)

    def deviation(form):
        head = form.make(config, 64, key=jax.random.key(0))
        assert not np.any(head.classifier.bias[...])
        return float(np.std(head.classifier.kernel[...]))

    assert deviation(heads.PooledFirstToken()) == pytest.approx(0.02 * 0.8796, rel=0.05)  # truncated
    assert deviation(heads.DenseFirstToken()) == pytest.approx(0.02, rel=0.05)
    assert deviation(heads.DecoderLastToken(initial_stddev=None)) == pytest.approx(64**-0.5, rel=0.05)
    assert deviation(heads.FirstToken()) == pytest.approx(0.02 * 0.8796, rel=0.05)
    assert deviation(heads.FirstToken(init=initializers.glorot_uniform)) == pytest.approx(128**-0.5 * 2**0.5, rel=0.05)
    assert not heads.LastToken().make(config, 3, key=jax.random.key(0)).classifier.has_bias


def test_logits_are_float32_in_a_bfloat16_model():
    config = BertConfig(vocab_size=8, embed_dim=6, mlp_dim=8, num_heads=2, head_dim=3, num_layers=1, dtype="bfloat16")
    for form in (heads.PooledFirstToken(), heads.DenseFirstToken(), heads.LastToken()):
        head = form.make(config, 3, key=jax.random.key(0))
        assert head(STATES.astype(jnp.bfloat16)).dtype == jnp.float32


def test_unknown_scores_may_be_nan():
    objective = SequenceRegression(head=heads.PooledFirstToken())
    head = heads.PooledFirstToken().make(CONFIG, 1, key=jax.random.key(0))
    batch = {"encoder_segment_ids": SEGMENTS, "label": np.array([[2.5], [np.nan]], np.float32)}

    def loss(head):
        terms = read_terms(objective, {"objective": {"sequence_classification": head}}, Outputs(hidden=STATES), batch)
        return terms.sums["sequence_regression"]

    value, gradient = jax.value_and_grad(loss)(head)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((value, gradient)))


def test_loss_of_several_scores_is_the_mean_over_those_that_are_known():
    objective = SequenceRegression(labels=("a", "b"), head=heads.PooledFirstToken())
    head = heads.PooledFirstToken().make(CONFIG, 2, key=jax.random.key(0))
    params, outputs = {"objective": {"sequence_classification": head}}, Outputs(hidden=STATES)
    batch = {"encoder_segment_ids": SEGMENTS, "label": np.array([[2.5, -1.0], [1.0, 4.0]], np.float32)}
    found = np.asarray(objective.predict(objective.read(params, outputs, batch))["predictions"])
    squares = (found - batch["label"]) ** 2
    terms = read_terms(objective, params, outputs, batch)
    assert found.shape == (2, 2) and total_weights(objective, batch)["sequence_regression"] == 3
    assert terms.sums["sequence_regression"] == pytest.approx(squares[0, 0] + squares[1, 0] + squares[1, 1], rel=1e-5)
    assert terms.metrics["loss"][1] == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SequenceRegression(labels=("a", "a"), head=heads.LastToken()), "labels=.*: give different names"),
        (lambda: SequenceClassification("ab", head=heads.LastToken()), "labels='ab' is not a sequence of names"),
        (lambda: SequenceClassification(["a", 1], head=heads.LastToken()), "is not a sequence of names"),
        (lambda: TokenClassification(["O"], head=heads.EachToken()), "give at least two different names"),
        (lambda: TokenClassification(["O", "O"], head=heads.EachToken()), "give at least two different names"),
        (
            lambda: SequenceClassification(LABELS, head=heads.EachToken()),
            "reads each token, but",
        ),
        (lambda: TokenClassification(LABELS, head=heads.LastToken()), "reads one token per row"),
        (lambda: SequenceClassification(LABELS, head=heads.LastToken(), label_smoothing=1.0), "label_smoothing=1.0"),
        (lambda: heads.EachToken(dropout_rate=1.0), "dropout_rate=1.0 of the head is out of range"),
        (lambda: heads.DecoderLastToken(bos_id=-1), "bos_id=-1 is not a token id"),
        (lambda: heads.DecoderLastToken(initial_stddev=0.0), "initial_stddev=0.0 is not positive"),
    ],
)
def test_invalid_arguments_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_heads_that_are_made_twice_have_the_same_structure():
    """As in a program and in what reads its run: an initializer may be a function that is new each time."""
    structures = [
        jax.tree.structure(
            jax.eval_shape(lambda key: heads.DecoderLastToken().make(CONFIG, 2, key=key), jax.random.key(0))
        )
        for _ in range(2)
    ]
    assert structures[0] == structures[1]
