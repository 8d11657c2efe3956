"""Mixtures of layers, and objectives on a model without dropout and gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, example_batch, random_model, scanned
from objective_cases import terms_of

from t5x_like import config, optimizers, parameters
from t5x_like.errors import UserError
from t5x_like.objectives.feature_based import NAME, FeatureBased, _View
from t5x_like.objectives.keys import Keys
from t5x_like.objectives.layer_mix import Concatenation, MixWeights, ScalarMix, Sum
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.passes import predict
from t5x_like.objectives.sequence_classification import SequenceClassification
from t5x_like.objectives.token_classification import TokenClassification

BERT = dataclasses.replace(FAMILIES["bert"].config, num_layers=3)
STATES = [np.random.default_rng(number).normal(size=(2, 3, 4)).astype(np.float32) for number in range(3)]

TOKENS = np.array([[True, True, True], [True, False, False]])


def test_scalar_mix_by_hand():
    weights = MixWeights(3)
    np.testing.assert_allclose(ScalarMix().mix(weights, STATES, TOKENS), np.mean(STATES, axis=0), rtol=1e-5, atol=1e-6)
    weights.weights[...], weights.scale[...] = jnp.log(jnp.array([1.0, 2.0, 5.0])), jnp.array(4.0)
    expected = 0.5 * STATES[0] + 1.0 * STATES[1] + 2.5 * STATES[2]
    np.testing.assert_allclose(ScalarMix().mix(weights, STATES, TOKENS), expected, rtol=1e-5, atol=1e-6)


def test_normalized_mix_has_the_statistics_of_the_tokens_of_a_row():
    found = ScalarMix((0,), normalize=True).mix(MixWeights(1), STATES[:1], TOKENS)
    for row, tokens in enumerate(TOKENS):
        x = STATES[0][row, tokens]
        np.testing.assert_allclose(found[row, tokens], (x - x.mean()) / x.std(), rtol=1e-5, atol=1e-6)
    assert not np.any(found[1, 1:])


def test_penalty_of_the_mixture_is_a_term():
    objective, trainable, frozen, batch = example(BERT, ScalarMix(penalty=0.25))
    params = optimizers.merge(trainable, frozen)
    params["objective"][NAME].weights[...] = jnp.array([1.0, 2.0, 0.0, -1.0])
    terms = terms_of(objective, params, batch)
    assert objective.coefficients[NAME] == 0.25
    weight = np.sum(objective.weights(batch)[NAME])
    np.testing.assert_allclose(terms.sums[NAME] / weight, 6.0, rtol=1e-6)


def test_sum_and_concatenation_by_hand():
    np.testing.assert_allclose(Sum().mix(None, STATES, TOKENS), np.sum(STATES, axis=0), rtol=1e-6)
    np.testing.assert_array_equal(Concatenation().mix(None, STATES, TOKENS), np.concatenate(STATES, axis=-1))
    assert Concatenation().size(4, 3) == 12


@pytest.mark.parametrize("layout", ["scanned", "unrolled"])
@pytest.mark.parametrize("family", ["bert", "bart", "gpt2", "t5_1_1"])
def test_states_are_embeddings_layers_and_last_hidden_states(family, layout):
    case = FAMILIES[family]
    sizes = scanned(case.config) if layout == "scanned" else case.config
    model, batch = random_model(sizes), example_batch(case)
    stack = case.stacks[-1]
    outputs = model(batch, capture=(f"{stack}/layers/hidden",))
    expected = [model.embed(batch)[stack], outputs.captured[f"{stack}/layers/hidden"][0], outputs.hidden]

    def state(number):
        return _View(model, None, Sum((number,)))(batch).hidden

    for number, array in enumerate(expected):
        np.testing.assert_allclose(state(number), array, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state(number - 3), array, rtol=1e-5, atol=1e-6)
    everything = _View(model, None, Sum(None))(batch).hidden
    np.testing.assert_allclose(everything, sum(expected), rtol=1e-5, atol=1e-5)


def example(sizes, features):
    """Returns an objective on a mixture, its parameters split as in training, and a batch."""
    objective = FeatureBased(NextSentence(), features=features)
    params = jax.jit(lambda key: {"model": (model := sizes.make(key)), "objective": objective.init(key, model)})(
        jax.random.key(0)
    )
    trainable, frozen = optimizers.split(params, optimizers.finetuning_groups(frozen="^model/"))
    batch = {
        "encoder_input_tokens": jnp.array([[4, 5, 6, 7], [6, 5, 0, 0]]),
        "encoder_segment_ids": jnp.array([[1, 1, 1, 1], [1, 1, 0, 0]]),
        "next_sentence_label": jnp.array([[0], [1]]),
    }
    return objective, trainable, frozen, batch


def total(objective, trainable, frozen, batch, key):
    return terms_of(objective, optimizers.merge(trainable, frozen), batch, keys=Keys(dropout=key)).sums["next_sentence"]


def test_model_is_not_differentiated_and_has_no_dropout():
    sizes = dataclasses.replace(BERT, dropout_rate=0.5, attention_dropout_rate=0.5)
    objective, trainable, frozen, batch = example(sizes, ScalarMix())
    assert set(parameters.named_leaves(trainable)) == {
        *(f"objective/{NAME}/{name}" for name in ("scale", "weights")),
        *(
            f"objective/next_sentence/{layer}/{name}"
            for layer in ("pooler", "classifier")
            for name in ("kernel", "bias")
        ),
    }

    def count(function, operation):
        jaxpr = jax.make_jaxpr(function)(trainable, frozen, batch, jax.random.key(0))
        return str(jaxpr).count(f" {operation}[")

    def forward(trainable, frozen, batch, key):
        return total(objective, trainable, frozen, batch, key)

    def backward(trainable, frozen, batch, key):
        return jax.grad(lambda trainable: forward(trainable, frozen, batch, key))(trainable)

    # Two products of the head: each has a gradient of its kernel, and of its input, down to the weights of the mixture.
    assert count(backward, "dot_general") == count(forward, "dot_general") + 4
    assert count(forward, "dot_general") > 3 * 6
    assert count(backward, "random_bits") == count(backward, "threefry2x32") == 0
    gradients = jax.jit(backward)(trainable, frozen, batch, jax.random.key(0))
    assert all(np.any(leaf != 0) for leaf in parameters.named_leaves(gradients).values())


def test_concatenation_widens_the_head():
    objective, trainable, frozen, batch = example(BERT, Concatenation())
    kernel = parameters.named_leaves(trainable)["objective/next_sentence/pooler/kernel"]
    assert kernel.shape == (4 * BERT.embed_dim, 4 * BERT.embed_dim)
    predictions = predict(objective, optimizers.merge(trainable, frozen), batch)
    assert predictions["probabilities"].shape == (2, 2)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (Sum((-5,)), r"states=\(-5,\) of Sum: a model with 3 layers has no state -5"),
        (Concatenation((1, 4)), r"a model with 3 layers has no state 4. Give numbers from 0"),
        (ScalarMix(()), r"states=\(\) of ScalarMix is empty"),
    ],
)
def test_missing_state_raises(features, message):
    with pytest.raises(UserError, match=message):
        example(BERT, features)


@pytest.mark.parametrize(
    ("head", "objective", "bindings"),
    [
        ("classification", SequenceClassification, []),
        (
            "tagging",
            TokenClassification,
            [
                ("HEAD_OBJECTIVE", "@token_classification.TokenClassification()"),
                ("layer_mix.ScalarMix.states", "(0, -1)"),
            ],
        ),
    ],
)
def test_gin_file_freezes_the_model_and_mixes_its_layers(head, objective, bindings):
    files = ["models/bert/tiny.gin", "runs/bert.gin", f"objectives/{head}.gin", "optimizers/adamw_finetune.gin"]
    resolved = config.load(
        "t5x_like.train.train",
        files=["commands/train.gin", *files, "runs/feature_based.gin"],
        bindings=[("MIXTURE_OR_TASK_NAME", "a_task"), ("TRAIN_STEPS", "100"), ("LABELS", "('a', 'b')"), *bindings],
        given=("run_config",),
    )
    configured = config.arguments(resolved.configured())["recipe"]
    assert configured.optimizer.groups[0] == optimizers.ParameterGroup("^model/", freeze=True)
    assert isinstance(configured.objective, FeatureBased)
    assert isinstance(configured.objective.objective, objective)
    assert configured.objective.mixture == ScalarMix((0, -1) if bindings else None)
