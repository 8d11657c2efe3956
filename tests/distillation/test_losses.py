"""Losses by hand: what they capture, what has weight, cached teachers, and the networks that they refuse."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.distillation import layer_maps, losses
from t5x_like.distillation.loss import ForwardPass, ModelSpec
from t5x_like.errors import UserError
from t5x_like.kernels.masks import MASK_VALUE
from t5x_like.kernels.top_k import TopK
from t5x_like.models.bert import BertConfig
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.outputs import Outputs
from t5x_like.models.t5 import T5Config
from t5x_like.objectives import heads
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.prediction import Prediction, identity
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence

SIZES = {"vocab_size": 11, "embed_dim": 4, "mlp_dim": 8, "num_heads": 2, "head_dim": 2, "max_length": 8}


def network(name="student", layers=2, objective=None, config=BertConfig, vocabulary=None, **sizes):
    return ModelSpec(name, config(**SIZES | sizes, num_layers=layers), objective or MaskedLM(), vocabulary)


STUDENT, TEACHER = network(), network("big", 4)
# Two tokens and padding; one token and padding.
BATCH = {"encoder_segment_ids": np.array([[1, 1, 0], [1, 0, 0]], np.int32)}


def view(network, captured=(), hidden=None, **predictions):
    return ForwardPass(network, Outputs(hidden=hidden, captured=dict(captured)), BATCH, lambda: predictions)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_captures_of_mapped_layers():
    scores = losses.AttentionScoresMSE(layers=layer_maps.last(1))
    expected = (("encoder/layers/1/attention/scores",), ("encoder/layers/3/attention/scores",))
    assert scores.captures(STUDENT, TEACHER) == expected
    hidden = losses.HiddenMSE(layers=layer_maps.every(2), embeddings=True)
    assert hidden.captures(STUDENT, TEACHER) == (
        ("encoder/embedding", "encoder/layers/0/hidden", "encoder/layers/1/hidden"),
        ("encoder/embedding", "encoder/layers/1/hidden", "encoder/layers/3/hidden"),
    )
    alone = losses.HiddenMSE(layers=(), embeddings=True)
    assert alone.captures(STUDENT, TEACHER) == (("encoder/embedding",), ("encoder/embedding",))
    relations = losses.Relations(of=("value",), layers=((0, -1),), stack="decoder")
    decoders = [network(layers=layers, config=GPTConfig, objective=CausalLM()) for layers in (1, 3)]
    assert relations.captures(*decoders) == (
        ("decoder/layers/0/attention/value",),
        ("decoder/layers/2/attention/value",),
    )
    t5 = T5Config(vocab_size=11, embed_dim=4, mlp_dim=8, num_heads=2, head_dim=2, encoder_layers=1, decoder_layers=2)
    both = [ModelSpec("student", t5, SequenceToSequence())] * 2
    scores = losses.AttentionKL(layers=((0, -1),), stack="decoder")
    names = ("decoder/layers/0/attention/scores",), ("decoder/layers/1/attention/scores",)
    assert scores.captures(*both) == names
    tokens = {name: np.ones((1, 3), np.int32) for name in ("encoder_input_tokens", "decoder_input_tokens")}
    outputs = jax.eval_shape(lambda: t5.make(jax.random.key(0))(tokens, capture=(*names[0], *names[1])))
    assert {*outputs.captured} == {*names[0], *names[1]}
    assert losses.HiddenCosine().captures(STUDENT, TEACHER) == (("encoder/output",), ("encoder/output",))
    assert losses.HiddenCosine().captures(*decoders) == (("decoder/output",), ("decoder/output",))
    assert losses.ForwardKL().captures(STUDENT, TEACHER) == ((), ())


def test_padding_has_no_weight():
    loss = losses.HiddenMSE(layers=((0, 0),))
    name = "encoder/layers/0/hidden"
    theirs = view(TEACHER, {name: random(2, 3, 4, seed=1)})

    def value(hidden):
        return loss({}, view(STUDENT, {name: hidden}), theirs)

    hidden = random(2, 3, 4)
    found, gradient = jax.value_and_grad(value)(hidden)
    difference = (hidden - theirs.outputs.captured[name])[BATCH["encoder_segment_ids"] > 0]
    np.testing.assert_allclose(found, np.sum(np.mean(difference**2, axis=-1)), rtol=1e-6)
    assert not np.asarray(gradient)[BATCH["encoder_segment_ids"] == 0].any()
    assert loss.weights(BATCH, STUDENT.objective).sum() == 3.0
    assert losses.PatientCLS(layers=((0, 0),)).weights(BATCH, STUDENT.objective).sum() == 2.0


def test_masked_scores_count_as_equal():
    # One head, three keys, the last of which is masked: the mean over keys includes it.
    masked = np.array([0.0, 0.0, MASK_VALUE], np.float32)
    ours = np.tile(np.array([1.0, 2.0, 5.0], np.float32) + masked, (2, 1, 3, 1))
    theirs = np.tile(np.array([2.0, 4.0, 7.0], np.float32) + masked, (2, 1, 3, 1))
    name = "encoder/layers/0/attention/scores"
    loss = losses.AttentionScoresMSE(layers=((0, 0),))
    value = loss({}, view(STUDENT, {name: ours}), view(TEACHER, {name: theirs}))
    np.testing.assert_allclose(value, 3 * (1 + 4 + 0) / 3, rtol=1e-6)


def test_projection_is_learned_where_widths_differ():
    key, wide = jax.random.key(0), network("wide", 4, embed_dim=6)
    loss = losses.HiddenMSE(layers=layer_maps.last(1))
    assert loss.init(key, STUDENT, TEACHER) == {}
    assert loss.init(key, STUDENT, wide)["projection"].kernel[...].shape == (4, 6)
    always = losses.HiddenMSE(layers=layer_maps.last(1), project=True)
    assert always.init(key, STUDENT, TEACHER)["projection"].bias[...].shape == (4,)
    with pytest.raises(UserError, match="project=False: the hidden states of the student have 4 features"):
        losses.HiddenMSE(layers=layer_maps.last(1), project=False).check(STUDENT, wide)


def test_logits_of_a_cached_teacher():
    logits, stored = random(2, 3, 11), random(2, 3, 11, seed=1)
    weights = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]], np.float32)
    loss = losses.ForwardKL(prediction="masked_lm", temperature=2.0)
    ours = view(STUDENT, masked_lm=Prediction(hidden=logits, logits=identity, weights=weights))
    ids = np.tile(np.arange(11, dtype=np.int32), (2, 3, 1))
    cached = {"masked_lm": TopK(stored, ids, np.zeros((2, 3), np.float32))}
    theirs = ForwardPass(TEACHER, None, BATCH, lambda: cached)
    p, log_q = jax.nn.softmax(stored / 2), jax.nn.log_softmax(logits / 2)
    expected = 4 * np.sum(np.sum(p * (np.log(p) - log_q), axis=-1) * weights)
    np.testing.assert_allclose(loss({}, ours, theirs), expected, rtol=1e-5)
    for other in (losses.HiddenCosine(), losses.AttentionKL(layers=((0, 0),))):
        name = type(other).__name__
        with pytest.raises(UserError, match=f"{name} reads hidden states or attention of big, whose logits are cached"):
            seen = {"encoder/layers/0/attention/scores": random(2, 2, 3, 3), "encoder/output": random(2, 3, 4)}
            other({}, view(STUDENT, seen), theirs)


@pytest.mark.parametrize(
    ("loss", "teacher", "message"),
    [
        (
            losses.ForwardKL(),
            TEACHER,
            "ForwardKL.prediction='targets': the objective of student does not predict it, but .*Give .*masked_lm",
        ),
        (
            losses.ForwardKL(prediction="masked_lm"),
            network("big", objective=SequenceClassification(("a", "b"), head=heads.PooledFirstToken())),
            "the objective of big does not predict it, but sequence_classification. Give a teacher of the student's",
        ),
        (losses.HiddenCosine(), network("big", embed_dim=6), "student have 4 features, those of big have 6"),
        (losses.PatientCLS(layers=((0, 4),)), TEACHER, "PatientCLS.layers maps .* the encoder of big has 4 layers"),
        (
            losses.AttentionKL(layers=((0, 0),)),
            network("big", num_heads=4),
            "AttentionKL needs the same num_heads in both networks, encoder: the student has 2, big",
        ),
        (
            losses.Relations(layers=((0, 0),), relation_heads=4),
            network("big", head_dim=3),
            "Relations.relation_heads=4 does not divide the 6 features of the query vectors of big",
        ),
        (
            losses.FeatureMap(layers=((0, 0),), stack="decoder"),
            TEACHER,
            r"stack='decoder': student \(BertConfig\) does not have this stack. It has: encoder",
        ),
    ],
)
def test_networks_that_do_not_fit_raise(loss, teacher, message):
    with pytest.raises(UserError, match=message):
        loss.check(STUDENT, teacher)


def test_other_labels_raise():
    objectives = [
        SequenceClassification(labels=labels, head=heads.PooledFirstToken())
        for labels in (("no", "yes"), ("yes", "no"))
    ]
    student, teacher = (
        network(name, objective=each) for name, each in zip(("student", "big"), objectives, strict=True)
    )
    loss = losses.SoftCrossEntropy(prediction="sequence_classification")
    loss.check(student, dataclasses.replace(teacher, objective=objectives[0]))
    with pytest.raises(UserError, match=r"different labels, \('no', 'yes'\) and \('yes', 'no'\)"):
        loss.check(student, teacher)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.ForwardKL(temperature=0.0), "ForwardKL.temperature=0.0 is not positive"),
        (lambda: losses.JensenShannon(beta=1.0), "JensenShannon.beta=1.0 is out of range"),
        (lambda: losses.Relations(layers=((0, 0),), of=("query", "keys")), "Relations.of=.* is not valid"),
        (lambda: losses.Relations(layers=((0, 0),), relation_heads=0), "relation_heads=0 is not positive"),
        (lambda: losses.turns({}, num_layers=2, steps_per_layer=0), "turns.steps_per_layer=0 is not a positive"),
    ],
)
def test_invalid_settings_raise(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_layers_take_turns():
    by_layer = losses.per_layer({"map": losses.FeatureMap(layers=layer_maps.every(2))}, num_layers=2)
    assert [loss.pairs(STUDENT, TEACHER) for loss in by_layer.values()] == [((0, 1),), ((1, 3),)]
    coefficients = losses.turns({"task": 0.5, "map": 100.0}, num_layers=2, steps_per_layer=10)
    assert coefficients.pop("task") == 0.5 and coefficients.keys() == by_layer.keys() == {"map_0", "map_1"}
    values = [[float(schedule(jnp.int32(step))) for step in (0, 9, 10, 25)] for schedule in coefficients.values()]
    assert values == [[50.0, 50.0, 0.0, 0.0], [0.0, 0.0, 50.0, 50.0]]
