"""Preference objectives on a whole model: losses of logits in float64, metrics, references, and invalid settings."""

import dataclasses
import functools

import copying_run
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES
from objective_cases import CASES
from preference_rows import PreferenceRows

from t5x_like import optimizers, parameters
from t5x_like.adapters.lora import LoRA
from t5x_like.errors import UserError
from t5x_like.kernels.cross_entropy import target_probabilities
from t5x_like.metrics import read_metrics
from t5x_like.models import construct, networks
from t5x_like.objectives import passes, preference_losses, reference
from t5x_like.objectives.kto import KTO
from t5x_like.objectives.passes import flatten_choices, forward_at_evaluation
from t5x_like.objectives.preferences import Preferences
from t5x_like.objectives.reward_model import RewardModel


@functools.cache
def computed(name):
    """Returns terms and metrics of a case as numbers."""
    case = CASES[name]
    run = jax.jit(lambda params, batch: passes.terms(forward_at_evaluation(case.objective, params, batch)))
    found = run(case.params(), case.batch())
    metrics = {name: float(total) / float(weight) for name, (total, weight) in found.metrics.items()}
    return {name: float(value) for name, value in found.sums.items()}, metrics


def log_probabilities(case, model):
    """Returns the sums over completions, `[batch, 2]`, and the positions `[batch, 2, length]`, in float64."""
    rows = flatten_choices(case.batch(), case.objective.features.axes)
    logits = np.asarray(jax.jit(lambda model, rows: model.unembed(model(rows).hidden))(model, rows), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = np.take_along_axis(log_p, np.asarray(rows["decoder_target_tokens"])[..., None], -1)[..., 0]
    weights = np.asarray(rows["decoder_loss_weights"])
    return [x.reshape(-1, 2, x.shape[-1]) for x in (found, weights)]


def sums(case):
    """Returns the sums of completions under policy and reference, `[batch, 2]`, and their weights."""
    params = case.params()
    positions, weights = log_probabilities(case, params["model"])
    frozen, _ = log_probabilities(case, params["objective"]["reference"])
    return (positions * weights).sum(-1), (frozen * weights).sum(-1), weights


def test_dpo_is_the_loss_of_the_completions():
    case = CASES["dpo"]
    policy, frozen, weights = sums(case)
    real = weights.any(-1).all(1)
    assert 3 < real.sum() < len(real)
    rewards = 0.5 * (policy - frozen)[real]
    margin = rewards[:, 0] - rewards[:, 1]
    found, metrics = computed("dpo")
    np.testing.assert_allclose(found["preferences"], np.log1p(np.exp(-margin)).sum(), rtol=2e-6)
    np.testing.assert_allclose(found["targets"], -policy[real, 0].sum(), rtol=2e-6)
    np.testing.assert_allclose(metrics["margin"], margin.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["chosen_reward"], rewards[:, 0].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["rejected_reward"], rewards[:, 1].mean(), rtol=1e-5)
    assert metrics["accuracy"] == pytest.approx((margin > 0).mean())
    assert metrics["chosen_nll"] == pytest.approx(-policy[real, 0].sum() / weights[real, 0].sum(), rel=1e-6)


def test_the_reference_has_no_gradient():
    case = CASES["dpo"]
    factors = {"preferences": 1.0, "targets": 0.0}

    def loss(params):
        return passes.loss(forward_at_evaluation(case.objective, params, case.batch()), factors)[0]

    gradients = parameters.named_leaves(jax.jit(jax.grad(loss))(case.params()))
    for name, gradient in gradients.items():
        assert np.any(gradient) != name.startswith("objective/reference/"), name


def test_kto_estimates_the_divergence_on_other_completions():
    case = CASES["kto"]
    policy, frozen, weights = sums(case)
    ratios, has_tokens = policy - frozen, weights.any(-1)
    kl = max(0.0, ratios[has_tokens[:, 1], 1].mean())
    real, desirable = has_tokens[:, 0], case.batch()["label"][:, 0] > 0
    advantages = 0.1 * (ratios[:, 0] - kl)
    losses = 1 - 1 / (1 + np.exp(-np.where(desirable, advantages, -advantages)))
    found, metrics = computed("kto")
    np.testing.assert_allclose(found["kto"], losses[real].sum(), rtol=2e-6)
    assert metrics["kl"] == pytest.approx(kl, rel=1e-5)
    assert metrics["chosen_reward"] == pytest.approx(0.1 * ratios[real & desirable, 0].mean(), rel=1e-5)


def test_reward_model_has_a_margin_and_centers_scores():
    case = CASES["reward_model"]
    batch = case.batch()
    predicted = jax.jit(functools.partial(passes.predict, case.objective))(case.params(), batch)
    rewards = np.asarray(predicted["rewards"], np.float64)
    real = (batch["decoder_segment_ids"] != 0).any(-1).all(1)
    first, second = rewards[real].T
    expected = np.log1p(np.exp(-(first - second - batch["margin"][real, 0]))) + 0.1 * (first + second) ** 2
    np.testing.assert_allclose(computed("reward_model")[0]["preferences"], expected.sum(), rtol=2e-6)
    assert computed("reward_model")[1]["accuracy"] == pytest.approx((first > second).mean())


@pytest.mark.full
def test_with_adapters_the_reference_is_the_model_without_them():
    """The loss of a new LoRA is log 2, and that of a trained one is that of two models."""
    case = CASES["dpo"]
    objective, config = Preferences(preference_losses.DPO(beta=0.5)), case.params()["model"].config
    config = dataclasses.replace(config, adapters=(LoRA(),))
    params = jax.jit(lambda key: networks.make(objective, config, key))(jax.random.key(0))
    assert params["objective"] == {}
    run = jax.jit(lambda params: passes.terms(forward_at_evaluation(objective, params, case.batch())))
    total, weight = run(params).metrics["loss"]
    assert float(total / weight) == pytest.approx(np.log(2), rel=1e-6)
    trained = parameters.map_named(lambda name, x: x + 0.3 if name.endswith("adapter/up") else x, params)
    both = {
        "model": construct.merge(trained["model"]),
        "objective": {"reference": reference.model_of(trained)},
    }
    for name, pair in run(trained).metrics.items():
        np.testing.assert_allclose(pair, run(both).metrics[name], rtol=1e-4, atol=1e-5)
    frozen = objective.frozen_names(config)
    assert "model/decoder/layers/attention/query/kernel" in frozen
    assert not any("adapter" in name for name in frozen)


def test_log_probabilities_in_chunks_have_the_same_gradient():
    rng = np.random.default_rng(0)
    hidden, kernel, targets = rng.normal(size=(2, 5, 4)), rng.normal(size=(4, 11)), rng.integers(0, 11, (2, 5))

    def loss(hidden, kernel, budget):
        found = target_probabilities(hidden, lambda h: h @ kernel, targets, budget_bytes=budget)
        return jnp.sum(jnp.square(jnp.sum(found.log_probability, axis=1)))

    arguments = [jnp.asarray(x, jnp.float32) for x in (hidden, kernel)]
    whole, chunked = (jax.grad(loss, argnums=(0, 1))(*arguments, budget) for budget in (2**20, 4 * 11 * 2 * 2))
    for ours, theirs in zip(chunked, whole, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Preferences(preference_losses.DPO(), nll=-1), "NLL=-1: negative"),
        (lambda: Preferences(preference_losses.DPO(), nll_tokens="prompt"), "NLL_TOKENS='prompt': unknown"),
        (lambda: RewardModel(centering=-1), "CENTERING=-1: negative"),
        (lambda: KTO(beta=0), "KTO.beta=0, desirable=1.0, undesirable=1.0: beta is not positive"),
    ],
)
def test_invalid_settings_raise(make, message):
    with pytest.raises(UserError, match=message):
        make()


def run(directory, objective, **settings):
    """Trains on pairs, and returns the rows of its metrics."""
    frozen = (optimizers.ParameterGroup("^objective/reference/", freeze=True),)
    settings = {"optimizer": optimizers.adamw(learning_rate=0.01, groups=frozen)} | settings
    copying_run.run(
        directory,
        model=FAMILIES["llama"].config,
        objective=objective,
        data=PreferenceRows(features=objective.features),
        evaluations=None,
        **settings,
    )
    return read_metrics(str(directory))


def test_a_short_run_learns_the_preference(tmp_path):
    first, *_, last = run(tmp_path, Preferences(preference_losses.DPO()), total=12)
    # The reference starts from other random weights than the policy, so that the first rewards are not 0.
    assert first["accuracy"] < 0.9 and last["accuracy"] == 1.0
    assert last["margin"] > first["margin"] + 0.3 and last["loss"] < 0.6


def test_training_the_reference_is_refused(tmp_path):
    with pytest.raises(
        UserError, match="Preferences: trains 'objective/reference/.*', a parameter of its reference mo"
    ):
        run(tmp_path, Preferences(preference_losses.DPO()), optimizer=optimizers.adamw(learning_rate=0.01))
