"""GRPO, RLOO and PPO: samples, advantages, losses and gradients by hand."""

import dataclasses
import functools
import types

import counting_rewards
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES
from lanes import others_are_full
from numerics import assert_close
from prompt_rows import PromptRows

from t5x_like import optimizers, parameters
from t5x_like.errors import UserError
from t5x_like.models import networks
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import gradients, passes, policy_gradient
from t5x_like.objectives.clipping import Clipping
from t5x_like.objectives.passes import flatten_choices
from t5x_like.objectives.policy_gradient import ADVANTAGES, GRPO, OLD, REWARDS, RLOO, SAMPLE
from t5x_like.objectives.ppo import PPO, RETURNS, VALUES, generalized_advantages, whitened
from t5x_like.objectives.reused_batches import FIRST_USE
from t5x_like.objectives.rewards import Rewards
from t5x_like.objectives.rollouts import Rollouts
from t5x_like.objectives.variables import Frozen
from t5x_like.partitioning import Partitioner

CONFIG = FAMILIES["llama"].config
COUNT = Rewards({"counting_rewards.count": 2.0})
ROLLOUTS = Rollouts(rewards=COUNT, samples=3, max_length=4, eos_id=1)


@functools.cache
def case(objective):
    """Returns random parameters, a batch with samples, and its rows."""
    like = jax.jit(lambda key: networks.make(objective, CONFIG, key))(jax.random.key(0))
    rng = np.random.default_rng(0)
    params = parameters.map_named(lambda name, x: x + jnp.asarray(rng.normal(size=x.shape) * 0.3, x.dtype), like)
    batch = PromptRows(batch_size=4).make(0)
    batch = {name: np.where(np.arange(4)[:, None] == 2, 0, x) for name, x in batch.items()}  # a row is padding
    prepare = jax.jit(functools.partial(objective.prepare, key=jax.random.key(1), step=0))
    prepared = jax.device_get(prepare(params, batch))
    return params, prepared, flatten_choices(prepared)


def log_probabilities(model, rows):
    """Returns the log-probabilities of the next tokens in float64."""
    rows = {name.removeprefix(SAMPLE): x for name, x in rows.items() if name.startswith(f"{SAMPLE}decoder")}
    logits = np.asarray(jax.jit(lambda model, rows: model.unembed(model(rows).hidden))(model, rows), np.float64)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = np.take_along_axis(log_p, np.asarray(rows["decoder_target_tokens"])[..., None], -1)[..., 0]
    return found, np.asarray(rows["decoder_loss_weights"])


def test_samples_follow_their_prompts_and_are_rewarded():
    objective = GRPO(ROLLOUTS)
    _, batch, _ = case(objective)
    (counted,) = objective.token_features
    completions = batch[f"{SAMPLE}decoder_loss_weights"].sum()
    assert np.count_nonzero(batch[counted]) == 3 * batch["decoder_segment_ids"].sum() + completions
    tokens, weights = batch[f"{SAMPLE}decoder_input_tokens"], batch[f"{SAMPLE}decoder_loss_weights"]
    assert tokens.shape == (4, 3, 6 + 4)
    for row, count in enumerate(batch["decoder_segment_ids"].sum(1)):
        for sample in range(3):
            length = weights[row, sample].sum()
            assert (length == 0) == (count == 0)
            if count == 0:
                assert batch[REWARDS][row, sample, 0] == 0
                continue
            assert tokens[row, sample, :count].tolist() == batch["decoder_input_tokens"][row, :count].tolist()
            completion = tokens[row, sample, count : count + length].tolist()
            assert not tokens[row, sample, count + length :].any()
            (expected,) = counting_rewards.count([], [completion], [])
            assert batch[REWARDS][row, sample, 0] == pytest.approx(2 * expected)
            assert np.flatnonzero(weights[row, sample]).tolist() == list(range(count - 1, count - 1 + length))
    assert len({tuple(each) for each in tokens.reshape(-1, 10).tolist()}) > 6


NORMALIZATIONS = {
    "dapo": lambda losses, mask, real: (losses * mask).sum() / mask.sum(),
    "grpo": lambda losses, mask, real: ((losses * mask).sum(-1) / np.maximum(mask.sum(-1), 1)).sum() / real.sum(),
    "dr_grpo": lambda losses, mask, real: (losses * mask).sum() / (real.sum() * 4),
}


@pytest.mark.parametrize("normalization", others_are_full(NORMALIZATIONS, {"dapo"}))
def test_grpo_by_hand(normalization):
    """With β = 0.5, the value is that of TRL, and the gradient that of the losses of the tokens."""
    objective = GRPO(ROLLOUTS, beta=0.5, normalization=normalization)
    params, batch, rows = case(objective)
    received = batch[REWARDS][..., 0].astype(np.float64)
    standardized = (received - received.mean(1, keepdims=True)) / (received.std(1, ddof=1, keepdims=True) + 1e-4)
    np.testing.assert_allclose(batch[ADVANTAGES][..., 0], standardized, rtol=1e-4, atol=1e-6)
    policy, mask = log_probabilities(params["model"], rows)
    frozen, _ = log_probabilities(params["objective"]["reference"], rows)
    divergence = np.exp(frozen - policy) - (frozen - policy) - 1
    losses = -rows[ADVANTAGES].astype(np.float64) + 0.5 * divergence
    expected = NORMALIZATIONS[normalization](losses, mask, mask.any(-1))

    def value(params):
        factors = gradients.factors_at(objective, 0, gradients.normalizers(objective, batch, "NUM_REAL_TARGET_TOKENS"))
        total, terms = passes.loss(passes.forward(objective, params, batch), factors)
        return total, terms.metrics

    (found, metrics), gradient = jax.jit(jax.value_and_grad(value, has_aux=True))(params)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    kl, tokens = metrics["kl"]
    np.testing.assert_allclose(kl / tokens, (divergence * mask).sum() / mask.sum(), rtol=1e-5)
    # d loss / d log π of a token, as the ratio is 1: -advantage + β (1 - π_ref / π).
    slope = (-rows[ADVANTAGES] + 0.5 * (1 - np.exp(frozen - policy))) * mask

    def surrogate(params):
        outputs = params["model"]({n.removeprefix(SAMPLE): x for n, x in rows.items() if n.startswith(f"{SAMPLE}dec")})
        logits = params["model"].unembed(outputs.hidden)
        targets = rows[f"{SAMPLE}decoder_target_tokens"][..., None]
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), targets, -1)[..., 0]
        divisors = {"dapo": mask.sum(), "dr_grpo": 4 * mask.any(-1).sum()}
        each = (
            slope / divisors[normalization]
            if normalization in divisors
            else (slope / np.maximum(mask.sum(-1, keepdims=True), 1) / mask.any(-1).sum())
        )
        return jnp.sum(log_p * each)

    for name, expected in parameters.named_leaves(jax.jit(jax.grad(surrogate))(params)["model"]).items():
        ours = parameters.named_leaves(gradient["model"])[name]
        np.testing.assert_allclose(ours, expected, rtol=1e-3, atol=1e-5 * np.abs(expected).max(), err_msg=name)
    assert not any(np.any(x) for x in parameters.named_leaves(gradient["objective"]).values())


def test_divergence_of_prompts_has_no_effect(monkeypatch):
    """A policy may find a token of a prompt so improbable that the ratio of the probabilities overflows."""
    monkeypatch.setattr(policy_gradient.reference, "model_of", lambda params: params["reference"])
    model = types.SimpleNamespace(unembed=lambda hidden: hidden)
    rows = {"decoder_target_tokens": np.array([[0, 1, 0]]), "decoder_loss_weights": np.array([[0, 1, 0]])}
    outputs = Outputs(hidden=None, networks={"reference": Outputs(hidden=jnp.zeros((1, 3, 2)))})
    given, samples = jnp.array([[-200.0, -1.0, -200.0]]), {f"{SAMPLE}{name}": x for name, x in rows.items()}
    added, metrics = GRPO(ROLLOUTS, beta=0.5).penalty({"reference": model}, outputs, samples, given)
    d = 1 - np.log(2)
    np.testing.assert_allclose(added, [[0, 0.5 * (np.exp(d) - d - 1), 0]], rtol=1e-6)
    np.testing.assert_allclose(metrics["kl"], (np.exp(d) - d - 1, 1), rtol=1e-6)


@pytest.mark.full
def test_rloo_by_hand():
    """The divergence is part of the reward, and the baseline is the mean of the other samples."""
    objective = RLOO(ROLLOUTS, beta=0.5)
    params, batch, rows = case(objective)
    policy, mask = log_probabilities(params["model"], rows)
    frozen, _ = log_probabilities(params["objective"]["reference"], rows)
    reduced = batch[REWARDS][..., 0] - 0.5 * ((policy - frozen) * mask).sum(-1).reshape(4, 3)
    expected = reduced - (reduced.sum(1, keepdims=True) - reduced) / 2
    np.testing.assert_allclose(batch[ADVANTAGES][..., 0], expected, rtol=1e-4, atol=1e-4)
    weights = passes.total_weights(objective, batch)["policy"]
    assert float(weights) == pytest.approx(9)  # samples of three prompts
    terms = jax.jit(lambda params: passes.terms(passes.forward(objective, params, batch)))(params)
    np.testing.assert_allclose(terms.sums["policy"], -expected[[0, 1, 3]].sum(), atol=1e-3)


TWICE = dataclasses.replace(ROLLOUTS, updates=2)
CLIPPING = Clipping(low=0.2, high=0.28)
REUSED = {
    "grpo": GRPO(TWICE, clipping=CLIPPING),
    "rloo": RLOO(TWICE, clipping=CLIPPING, beta=0.0),
    "ppo": PPO(TWICE, clipping=CLIPPING, beta=0.0, value_limit=0.3, value_factor=1.0),
}


def reused_rows(rng, objective):
    """Returns rows of an update of samples of two prompts, three of each, and the logits of the update."""
    length, vocabulary = 9, 5
    tokens, before = rng.integers(2, vocabulary, (6, length)), 3
    counts = rng.integers(1, length - before, 6)
    mask = (np.arange(length) >= before - 1) & (np.arange(length) < before - 1 + counts[:, None])
    per_token = isinstance(objective, PPO)
    values = {
        "decoder_target_tokens": np.roll(tokens, -1, axis=1),
        "decoder_loss_weights": mask.astype(np.int32),
        "advantages": rng.normal(size=(6, length if per_token else 1)).astype(np.float32),
        "log_probabilities": np.log(rng.uniform(0.1, 0.3, (6, length))).astype(np.float32),
        **{name: rng.normal(size=(6, length)).astype(np.float32) for name in ("values", "returns") if per_token},
        **{name: rng.normal(size=(6, 1)).astype(np.float32) for name in ("rewards", "spread", "truncated")},
    }
    rows = {f"{SAMPLE}{name}": x for name, x in values.items()}
    rows |= {"decoder_segment_ids": np.ones((2, 4), np.int32), FIRST_USE: np.zeros(1, np.float32)}
    return rows, rng.normal(size=(6, length, vocabulary)).astype(np.float32)


def by_hand(name, rows, logits):
    """Returns the loss of an update, its gradient and the share of limited ratios in float64."""
    rows, logits = ({n: np.asarray(x, np.float64) for n, x in rows.items()}, logits.astype(np.float64))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    chosen = np.eye(logits.shape[-1])[rows[f"{SAMPLE}decoder_target_tokens"].astype(int)]
    mask, advantages = rows[f"{SAMPLE}decoder_loss_weights"], rows[ADVANTAGES]
    change = (np.log((p * chosen).sum(-1)) - rows[OLD]) * mask
    if name == "rloo":
        change = change.sum(1, keepdims=True)
    ratio = np.exp(change)
    limited = np.clip(ratio, 0.8, 1.28) * advantages < ratio * advantages
    divisor, units = (6, np.ones((6, 1))) if name == "rloo" else (mask.sum(), mask)
    loss = (-np.minimum(np.clip(ratio, 0.8, 1.28) * advantages, ratio * advantages) * units).sum() / divisor
    slope = np.where(limited, 0.0, -ratio * advantages) * mask / divisor
    gradient = slope[..., None] * (chosen - p)
    if name == "ppo":
        value, old, target = logits[..., 0], rows[VALUES], rows[RETURNS]
        near = old + np.clip(value - old, -0.3, 0.3)
        first, second = (value - target) ** 2, (near - target) ** 2
        loss += (0.5 * np.maximum(first, second) * mask).sum() / divisor
        gradient[..., 0] += np.where((first >= second), value - target, 0.0) * mask / divisor
    return loss, gradient, (limited * units).sum() / units.sum()


@pytest.mark.parametrize("name", REUSED)
def test_later_updates_have_limited_ratios_and_the_first_one_has_the_ratio_one(name):
    objective = REUSED[name]
    rows, logits = reused_rows(np.random.default_rng(3), objective)
    model = types.SimpleNamespace(unembed=lambda hidden: hidden)
    params = {"model": model, "objective": {"value": lambda hidden: hidden[..., :1]}}

    @jax.jit
    def run(logits, rows):
        def value(logits):
            found = objective.read(params, Outputs(hidden=logits), rows)
            weights = {term: jnp.sum(x) for term, x in objective.target_weights(rows).items()}
            total = sum(objective.coefficients[term] * found.sums[term] / weights[term] for term in found.sums)
            return total, (*(found.metrics[name] for name in ("clipped", "entropy")), found.next_stage_features[OLD])

        return jax.value_and_grad(value, has_aux=True)(logits)

    (found, (clipped, entropy, kept)), gradient = run(logits, rows)
    expected, by_logit, share = by_hand(name, rows, logits)
    assert found == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(gradient, by_logit, atol=1e-6 * np.abs(by_logit).max())
    assert 0 < share < 1 and clipped[0] / clipped[1] == pytest.approx(share)
    np.testing.assert_array_equal(kept.reshape(6, -1), rows[OLD])
    p = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum(-1, keepdims=True)
    mask = rows[f"{SAMPLE}decoder_loss_weights"]
    assert entropy[0] / entropy[1] == pytest.approx((-(p * np.log(p)).sum(-1) * mask).sum() / mask.sum(), rel=1e-5)

    (_, (clipped, _, kept)), gradient = run(logits, {**rows, FIRST_USE: np.ones(1, np.float32)})
    assert clipped[0] == 0
    # What is kept gives the ratio 1 again, to the bit.
    again = {**rows, OLD: np.asarray(kept).reshape(6, -1)}
    np.testing.assert_array_equal(run(logits, again)[1], gradient)
    (_, (clipped, *_)), _ = run(logits, again)
    assert clipped[0] == 0
    np.testing.assert_allclose(gradient, by_hand(name, again, logits)[1], atol=1e-6 * np.abs(gradient).max())


def test_updates_far_from_the_sampler_are_finite():
    """Two updates at a high learning rate may change the log-probability of a sample by hundreds of nats."""
    objective = REUSED["rloo"]
    rows, logits = reused_rows(np.random.default_rng(3), objective)
    rows[ADVANTAGES] = np.array([[1.0], [2.0], [-1.0], [1.0], [-2.0], [0.0]], np.float32)
    rows[OLD] = rows[OLD] - np.float32(500)
    params = {"model": types.SimpleNamespace(unembed=lambda hidden: hidden), "objective": {}}
    compute = jax.jit(jax.value_and_grad(lambda x: objective.read(params, Outputs(hidden=x), rows).sums["policy"]))
    loss, gradient = compute(logits)
    assert np.isfinite(loss) and np.isfinite(gradient).all()
    changed = np.abs(gradient).max(axis=(1, 2)) > 0
    assert changed.tolist() == [False, False, True, False, True, False]


def test_generalized_advantages_are_sums_and_whitened_over_tokens():
    rng = np.random.default_rng(0)
    lengths = np.array([1, 4, 0, 6])
    mask = (np.arange(8) >= 1) & (np.arange(8) < 1 + lengths[:, None])
    rewards, values = (np.where(mask, rng.normal(size=(4, 8)), 0).astype(np.float32) for _ in range(2))
    expected = np.zeros((4, 8))
    for row, length in enumerate(lengths):
        r, v = (np.append(x[row, 1 : 1 + length].astype(np.float64), 0) for x in (rewards, values))
        for t in range(length):
            deltas = [r[j] + 0.9 * v[j + 1] - v[j] for j in range(t, length)]
            expected[row, 1 + t] = sum((0.9 * 0.7) ** number * delta for number, delta in enumerate(deltas))
    found = generalized_advantages(rewards, values, mask.astype(np.float32), gamma=0.9, gae_lambda=0.7)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    centered = np.where(mask, expected - expected[mask].mean(), 0)
    np.testing.assert_allclose(
        whitened(found, mask.astype(np.float32)), centered / np.sqrt(expected[mask].var() + 1e-8), rtol=1e-5, atol=1e-6
    )


@pytest.mark.full
def test_ppo_rewards_each_token_with_the_divergence():
    objective = PPO(ROLLOUTS, beta=0.5, gamma=1.0, gae_lambda=1.0)
    params, batch, rows = case(objective)
    policy, mask = log_probabilities(params["model"], rows)
    frozen, _ = log_probabilities(params["objective"]["reference"], rows)
    last = mask * (1 - np.pad(mask[:, 1:], ((0, 0), (0, 1))))
    rewards = last * rows[REWARDS] - 0.5 * (policy - frozen) * mask
    # With γ = λ = 1, the return of a token is the sum of the rewards from it on.
    returns = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1] * mask
    np.testing.assert_allclose(rows[RETURNS], returns, atol=1e-6 * np.abs(returns).max())
    real = mask > 0
    advantages = (returns - rows[VALUES])[real]
    standardized = (advantages - advantages.mean()) / np.sqrt(advantages.var() + 1e-8)
    np.testing.assert_allclose(rows[ADVANTAGES][real], standardized, atol=1e-6 * np.abs(standardized).max())
    assert np.std(rows[VALUES][real]) > 0 and not rows[VALUES][~real].any()


@pytest.mark.full
def test_samples_and_gradients_are_equal_in_microbatches_on_eight_devices():
    objective = PPO(ROLLOUTS, beta=0.5)
    params = case(objective)[0]
    batch = PromptRows(batch_size=16).make(0)

    def step(params, batch, microbatches):
        batch = objective.prepare(params, batch, key=jax.random.key(1), step=0)
        _, frozen = optimizers.split(params, ())
        options = {
            "keys": gradients.keys_of_step(objective, jax.random.key(0), batch, dropout=False),
            "microbatches": microbatches,
            "normalize": gradients.normalizers(objective, batch, "NUM_REAL_TARGET_TOKENS"),
        }
        found, metrics, _ = gradients.compute(objective, params, Frozen(frozen), batch, **options)
        return batch[REWARDS], found, metrics

    def on(devices, microbatches):
        partitioner = Partitioner(rules="fsdp", ici={"data": devices}, devices=jax.devices()[:devices])
        compute = partitioner.jit(functools.partial(step, microbatches=microbatches))
        return jax.device_get(compute(params, partitioner.put_batch(batch)))

    (rewards, *expected), (others, *found) = on(1, 1), on(8, 2)
    np.testing.assert_array_equal(rewards, others)
    assert_close(*(parameters.named_leaves(each[0]) for each in (found, expected)))
    assert_close(*({name: np.stack(pair) for name, pair in each[1].items()} for each in (found, expected)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rollouts(rewards=COUNT, updates=0), "SAMPLES_PER_PROMPT=8, .*UPDATES_PER_ROLLOUT=0: not positive"),
        (lambda: RLOO(Rollouts(rewards=COUNT, samples=1)), "SAMPLES_PER_PROMPT=1: RLOO compares the completions of a"),
        (lambda: GRPO(ROLLOUTS, beta=-1.0), "BETA=-1.0: negative. Give the factor of the divergence"),
        (
            lambda: GRPO(ROLLOUTS, normalization="mean"),
            "NORMALIZATION='mean': unknown. Give one of dapo, grpo, dr_grpo",
        ),
        (lambda: PPO(ROLLOUTS, gae_lambda=1.1), "GAE_LAMBDA=1.1, .*one of the first two is not in"),
    ],
)
def test_invalid_settings_raise(make, message):
    with pytest.raises(UserError, match=message):
        make()
