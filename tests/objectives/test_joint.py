"""Several objectives over one run of the network; BERT's pretraining is exact on any split of its batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from t5x_like import optimizers, parameters
from t5x_like.data import features
from t5x_like.models.bert import BertConfig
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.training import step

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
    """Pairs with none to all of their predictions, some rows all padding: no two parts of it weigh the same."""
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
def gradient_by_definition():
    """Of the mean over masked tokens plus the mean over pairs, by gathers and dense softmax."""

    def loss(params, batch):
        model, heads = params["model"], params["objective"]
        hidden = model(batch).hidden
        rows, places = np.nonzero(batch["masked_weights"])
        chosen = hidden[rows, batch["masked_positions"][rows, places]][None]
        logits = model.unembed(heads["masked_lm"](chosen))[0] + heads["masked_lm"].bias[...]
        of_tokens = jax.nn.log_softmax(logits)[np.arange(len(rows)), batch["masked_targets"][rows, places]]
        pairs = np.nonzero(batch["encoder_segment_ids"][:, 0])[0]
        of_pairs = jax.nn.log_softmax(heads["next_sentence"](hidden)[pairs, 0])
        labels = batch["next_sentence_label"][pairs, 0]
        return -jnp.mean(of_tokens) - jnp.mean(of_pairs[np.arange(len(pairs)), labels])

    return parameters.named_leaves(jax.grad(loss)(make_params(), make_batch()))


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_pretraining_has_the_same_gradient_on_any_split(microbatches, devices):
    partitioner = Partitioner(rules="fsdp", ici={"fsdp": devices}, devices=jax.devices()[:devices])
    _, frozen = optimizers.split(make_params(), ())

    def run(params, batch):
        normalize = step.normalizers(PRETRAINING, batch, "NUM_REAL_TARGET_TOKENS")
        return step.gradients(PRETRAINING, params, frozen, batch, None, microbatches, normalize)

    found, metrics = partitioner.jit(run)(make_params(), partitioner.put_batch(make_batch()))
    assert_close(parameters.named_leaves(found), gradient_by_definition())
    assert float(metrics["loss"][1]) == make_batch()["masked_weights"].sum()
    assert float(metrics["next_sentence_loss"][1]) == make_batch()["encoder_segment_ids"].any(axis=1).sum()


def test_it_reads_what_its_parts_read():
    assert PRETRAINING.features == features.SENTENCE_PAIRS
    assert Joint([MaskedLM()]).features == features.MASKED_LM
    assert Joint([MaskedLM()]).features.packable and not PRETRAINING.features.packable


def test_the_network_runs_once_and_the_parts_terms_stand_side_by_side():
    params, batch, runs = make_params(), make_batch(), []

    def model(batch, *, dropout_key):
        runs.append(dropout_key)
        return params["model"](batch, dropout_key=dropout_key)

    model.unembed = params["model"].unembed
    terms = PRETRAINING.terms({"model": model, "objective": params["objective"]}, batch, dropout_key=None)
    assert runs == [None]
    alone = [part.terms(params, batch) for part in PRETRAINING.objectives]
    assert terms.sums.keys() == {"masked_lm", "next_sentence"} == PRETRAINING.weights(batch).keys()
    for part in alone:
        for name, value in part.sums.items():
            np.testing.assert_allclose(terms.sums[name], value, rtol=1e-6)
        for name, pair in part.metrics.items():
            np.testing.assert_allclose(terms.metrics[name], pair, rtol=1e-6)


def test_every_part_owns_its_head():
    heads = jax.eval_shape(PRETRAINING.init, jax.random.key(0), jax.eval_shape(CONFIG.make, jax.random.key(0)))
    assert heads.keys() == {"masked_lm", "next_sentence"}


def test_coefficients_are_the_parts_unless_given():
    assert PRETRAINING.coefficients == {"masked_lm": 1.0, "next_sentence": 1.0}
    without = Joint([MaskedLM(), NextSentence()], coefficients={"next_sentence": 0.0})
    assert without.coefficients == {"masked_lm": 1.0, "next_sentence": 0.0}


@pytest.mark.parametrize(
    ("parts", "coefficients", "message"),
    [
        ([], None, "at least one part"),
        ([MaskedLM(), MaskedLM()], None, "the term 'masked_lm'"),
        ([MaskedLM()], {"mlm": 2.0}, "names 'mlm'; terms are masked_lm"),
    ],
)
def test_what_does_not_fit_together_is_refused(parts, coefficients, message):
    with pytest.raises(ValueError, match=message):
        Joint(parts, coefficients=coefficients)


def test_parts_that_read_one_feature_in_two_ways_are_refused():
    other = MaskedLM()
    changed = [
        features.ModelFeature(f.name, "targets", f.role) if f.name == "encoder_positions" else f
        for f in SequenceToSequence().features.features
    ]
    other.features = features.FeatureSpec(features=tuple(changed), packable=True)
    other.coefficients = {"targets": 1.0}
    with pytest.raises(ValueError, match="the model feature 'encoder_positions'"):
        Joint([MaskedLM(), other])
