"""Joint objectives: one forward pass, and BERT's pretraining gradient on any number of microbatches and devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close
from objective_cases import terms_of

from t5x_like import optimizers, parameters
from t5x_like.data import features, specs
from t5x_like.models.bert import BertConfig
from t5x_like.objectives import gradients
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.keys import NO_KEYS
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.passes import forward, predict, total_weights
from t5x_like.objectives.recurrent_lm import RecurrentLM
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.objectives.variables import Frozen
from t5x_like.partitioning import Partitioner

CONFIG = BertConfig(
    vocab_size=24,
    embed_dim=8,
    mlp_dim=16,
    num_heads=2,
    head_dim=4,
    num_layers=1,
    max_length=8,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
)
BATCH, LENGTH, PREDICTIONS = 32, 6, 3
PRETRAINING = Joint([MaskedLM(), NextSentence()])


@functools.cache
def make_params():
    model = jax.eval_shape(CONFIG.make, jax.random.key(0))
    like = {"model": model, "objective": jax.eval_shape(PRETRAINING.init, jax.random.key(0), model)}
    rng = np.random.default_rng(0)
    return parameters.map_named(lambda name, leaf: jnp.asarray(0.5 * rng.normal(size=leaf.shape), jnp.float32), like)


@functools.cache
def make_batch():
    """Returns pairs with 0 to all predictions and some rows of padding, so that microbatches differ in weight."""
    rng = np.random.default_rng(1)
    real = (np.arange(BATCH) % 5 != 4)[:, None]
    predictions = (np.arange(BATCH) % (PREDICTIONS + 1))[:, None] * real
    weights = np.arange(PREDICTIONS) < predictions
    batch = {
        "encoder_input_tokens": rng.integers(1, 24, (BATCH, LENGTH)) * real,
        "encoder_segment_ids": np.ones((BATCH, LENGTH)) * real,
        "encoder_positions": np.tile(np.arange(LENGTH), (BATCH, 1)) * real,
        "token_types": np.tile(np.arange(LENGTH) > 3, (BATCH, 1)) * real,
        "masked_positions": rng.integers(0, LENGTH, (BATCH, PREDICTIONS)) * weights,
        "masked_targets": rng.integers(1, 24, (BATCH, PREDICTIONS)) * weights,
        "masked_weights": weights,
        "next_sentence_label": rng.integers(0, 2, (BATCH, 1)) * real,
    }
    return {name: array.astype(np.int32) for name, array in batch.items()}


@functools.cache
def reference_gradient():
    """Returns the gradient of both means, over masked tokens and over pairs, with gathers and a dense softmax."""

    def loss(params, batch):
        model, heads = params["model"], params["objective"]
        hidden = model(batch).hidden
        rows, columns = np.nonzero(batch["masked_weights"])
        chosen = hidden[rows, batch["masked_positions"][rows, columns]][None]
        logits = model.unembed(heads["masked_lm"](chosen))[0] + heads["masked_lm"].bias[...]
        of_tokens = jax.nn.log_softmax(logits)[np.arange(len(rows)), batch["masked_targets"][rows, columns]]
        pairs = np.nonzero(batch["encoder_segment_ids"][:, 0])[0]
        of_pairs = jax.nn.log_softmax(heads["next_sentence"](hidden)[pairs, 0])
        labels = batch["next_sentence_label"][pairs, 0]
        return -jnp.mean(of_tokens) - jnp.mean(of_pairs[np.arange(len(pairs)), labels])

    return parameters.named_leaves(jax.grad(loss)(make_params(), make_batch()))


@pytest.mark.full
@pytest.mark.parametrize(("microbatches", "devices"), [(1, 1), (2, 8)])
def test_gradient_is_equal_on_any_microbatches_and_devices(microbatches, devices):
    partitioner = Partitioner(rules="fsdp", ici={"fsdp": devices}, devices=jax.devices()[:devices])
    _, frozen = optimizers.split(make_params(), ())

    def run(params, batch):
        normalize = gradients.normalizers(PRETRAINING, batch, "NUM_REAL_TARGET_TOKENS")
        options = {"keys": NO_KEYS, "microbatches": microbatches, "normalize": normalize}
        return gradients.compute(PRETRAINING, params, Frozen(frozen), batch, **options)[:2]

    found, metrics = partitioner.jit(run)(make_params(), partitioner.put_batch(make_batch()))
    assert_close(parameters.named_leaves(found), reference_gradient())
    assert float(metrics["loss"][1]) == make_batch()["masked_weights"].sum()
    assert float(metrics["next_sentence_loss"][1]) == make_batch()["encoder_segment_ids"].any(axis=1).sum()


def test_features_are_merged():
    assert PRETRAINING.features == specs.SENTENCE_PAIRS
    assert Joint([MaskedLM()]).features == specs.MASKED_LM
    assert Joint([MaskedLM()]).features.packable and not PRETRAINING.features.packable


def test_model_runs_once_and_terms_are_combined():
    params, batch, dropout_keys = make_params(), make_batch(), []

    def model(batch, *, dropout_key, capture, edits):
        dropout_keys.append(dropout_key)
        return params["model"](batch, dropout_key=dropout_key)

    model.unembed, model.config = params["model"].unembed, params["model"].config
    terms = terms_of(PRETRAINING, {"model": model, "objective": params["objective"]}, batch)
    assert dropout_keys == [None]
    separate = [terms_of(objective, params, batch) for objective in PRETRAINING.objectives]
    assert terms.sums.keys() == {"masked_lm", "next_sentence"} == total_weights(PRETRAINING, batch).keys()
    for expected in separate:
        for name, value in expected.sums.items():
            np.testing.assert_allclose(terms.sums[name], value, rtol=1e-6)
        for name, pair in expected.metrics.items():
            np.testing.assert_allclose(terms.metrics[name], pair, rtol=1e-6)


def test_predictions_of_the_first_objective_keep_their_names():
    params, batch = make_params(), make_batch()
    masked, pairs = (predict(objective, params, batch) for objective in PRETRAINING.objectives)
    found = predict(PRETRAINING, params, batch)
    assert list(found) == ["predictions", "next_sentence/predictions", "next_sentence/probabilities"]
    np.testing.assert_array_equal(found["predictions"], masked["predictions"])
    np.testing.assert_array_equal(found["next_sentence/predictions"], pairs["predictions"])


def test_handed_features_of_all_objectives_are_united():
    class Handing(MaskedLM):
        def read(self, params, outputs, rows, **options):
            return dataclasses.replace(
                super().read(params, outputs, rows, **options), next_stage_features={"hidden": outputs.hidden}
            )

    found = jax.eval_shape(
        lambda: forward(Joint([Handing(), NextSentence()]), make_params(), make_batch()).next_stage_features
    )
    assert {name: x.shape for name, x in found.items()} == {"hidden": (BATCH, LENGTH, CONFIG.embed_dim)}


def test_init_returns_heads_of_all_objectives():
    heads = jax.eval_shape(PRETRAINING.init, jax.random.key(0), jax.eval_shape(CONFIG.make, jax.random.key(0)))
    assert heads.keys() == {"masked_lm", "next_sentence"}


def test_given_coefficients_replace_defaults():
    assert PRETRAINING.coefficients == {"masked_lm": 1.0, "next_sentence": 1.0}
    joint = Joint([MaskedLM(), NextSentence()], coefficients={"next_sentence": 0.0})
    assert joint.coefficients == {"masked_lm": 1.0, "next_sentence": 0.0}


@pytest.mark.parametrize(
    ("objectives", "coefficients", "message"),
    [
        ([], None, "Joint.objectives is empty. Give at least one objective"),
        ([MaskedLM(), MaskedLM()], None, "the term 'masked_lm'"),
        ([MaskedLM(), RecurrentLM()], None, "RecurrentLM defines `run`, but a Joint runs the model once"),
        ([MaskedLM()], {"mlm": 2.0}, "unknown term 'mlm'. The terms are masked_lm"),
    ],
)
def test_invalid_arguments_raise(objectives, coefficients, message):
    with pytest.raises(ValueError, match=message):
        Joint(objectives, coefficients=coefficients)


def test_conflicting_feature_definitions_raise():
    other = MaskedLM()
    changed = [
        features.ModelFeature(f.name, "targets", f.role) if f.name == "encoder_positions" else f
        for f in SequenceToSequence().features.features
    ]
    other.features = features.FeatureSpec(features=tuple(changed), packable=True)
    other.coefficients = {"targets": 1.0}
    with pytest.raises(ValueError, match="the model feature 'encoder_positions'"):
        Joint([MaskedLM(), other])
