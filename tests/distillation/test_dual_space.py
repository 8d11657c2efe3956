"""DSKD against NumPy in float64, with its gradients: what is trained, and what has no gradient."""

import dataclasses

import jax
import jax.numpy as jnp
import lanes
import numpy as np
import pytest
from aligned_cases import LENGTHS, PREDICTED, ROWS, STUDENT, TEACHER

from t5x_like.distillation import losses
from t5x_like.distillation.loss import ForwardPass, ModelSpec
from t5x_like.distillation.losses.across_tokenizers import TEACHER as PREFIX
from t5x_like.errors import UserError
from t5x_like.kernels import chunks
from t5x_like.models.gpt import GPTConfig
from t5x_like.models.llama import LlamaConfig
from t5x_like.models.lstm import LSTMConfig
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.objectives.prediction import Prediction

SIZES = dict(num_heads=1, num_layers=1, mlp_dim=4, max_length=16)
CONFIGS = {
    "student": GPTConfig(vocab_size=len(STUDENT), embed_dim=4, head_dim=4, **SIZES),
    "teacher": LlamaConfig(vocab_size=len(TEACHER), embed_dim=6, head_dim=6, **SIZES),
}
NETWORKS = {
    name: ModelSpec(name, config, CausalLM(), tokens=tokens)
    for (name, config), tokens in zip(CONFIGS.items(), (STUDENT, TEACHER), strict=True)
}
CASES = {
    "forward": dict(beta=0.0, temperature=2.0),
    "reverse": dict(beta=1.0, temperature=1.0),
    "Jensen-Shannon": dict(beta=0.3, temperature=1.0),
}


def make(seed=0):
    """Returns models, projections, hidden states, and the input and target tokens of both networks."""
    rng = np.random.default_rng(seed)
    models = {
        name: jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), config.make(jax.random.key(0)))
        for name, config in CONFIGS.items()
    }
    heads = losses.DSKD().init(jax.random.key(1), NETWORKS["student"], NETWORKS["teacher"])
    heads = jax.tree.map(lambda x: x + jnp.asarray(0.3 * rng.normal(size=x.shape), jnp.float32), heads)
    hidden = {
        name: jnp.asarray(rng.normal(size=(2, length, CONFIGS[name].embed_dim)), jnp.float32)
        for name, length in LENGTHS.items()
    }
    tokens = {
        name: [rng.integers(0, config.vocab_size, (2, LENGTHS[name])) for _ in range(2)]
        for name, config in CONFIGS.items()
    }
    return models, heads, hidden, tokens


def value(loss, models, heads, hidden, tokens):
    views = []
    for name, network in NETWORKS.items():
        inputs, targets = map(jnp.asarray, tokens[name])
        weights = jnp.asarray(PREDICTED[name])
        batch = {"decoder_input_tokens": inputs, "decoder_target_tokens": targets, "decoder_loss_weights": weights}
        prediction = Prediction(hidden[name], models[name].unembed, weights, targets)
        views.append(ForwardPass(network, None, batch, lambda found=prediction: {"targets": found}, models[name]))
    return loss(heads, *views)


compute = jax.jit(jax.value_and_grad(value, argnums=(1, 2, 3)), static_argnums=0)


# ---- NumPy -----------------------------------------------------------------------------------------------------------


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def arrays_of(models, heads, hidden):
    """Returns what the loss reads, in float64."""
    found = {f"hidden/{name}": x for name, x in hidden.items()}
    found |= {f"embedding/{name}": model.token_embedder.embedding[...] for name, model in models.items()}
    found["head/teacher"] = models["teacher"].logits.kernel[...]
    for name, head in heads.items():
        found |= {f"{name}/kernel": head.kernel[...], f"{name}/bias": head.bias[...]}
    return {name: np.asarray(x, np.float64) for name, x in found.items()}


def kl(log_p, log_q):
    return np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)


def generalized(beta, log_p, log_q):
    if beta in (0, 1):
        return kl(log_p, log_q) if beta == 0 else kl(log_q, log_p)
    log_m = np.log(beta * np.exp(log_p) + (1 - beta) * np.exp(log_q))
    return beta * kl(log_p, log_m) + (1 - beta) * kl(log_q, log_m)


def reference(live, fixed, tokens, *, beta, temperature):
    """Returns the loss of arrays, of which `fixed` are the values that have no gradient."""
    total = 0.0
    for row in range(2):
        ours, theirs = (np.flatnonzero(PREDICTED[name][row]) for name in ("student", "teacher"))
        (own_in, own_out), (their_in, their_out) = (
            [fixed[f"embedding/{name}"][ids[row, at]] for ids in tokens[name]]
            for name, at in (("student", ours), ("teacher", theirs))
        )
        target = tokens["student"][1][row, ours]
        query = np.concatenate([own_in, own_out], axis=1) @ live["query/kernel"] + live["query/bias"]
        key = np.concatenate([their_in, their_out], axis=1)
        scores = query @ (key / key.std(ddof=1)).T / np.sqrt(key.shape[1])
        states = fixed["hidden/teacher"][row, theirs]
        states = states / states.std(ddof=1) + their_out / their_out.std(ddof=1)
        moved = np.exp(log_softmax(scores)) @ (states @ live["to_student/kernel"] + live["to_student/bias"])
        logits = moved @ fixed["embedding/student"].T
        total -= log_softmax(logits)[np.arange(len(target)), target].sum()
        own = live["hidden/student"][row, ours]
        right = logits.argmax(axis=1) == target
        known = fixed["moved"][row] if "moved" in fixed else logits
        fixed.setdefault("found", []).append(logits)
        log_q = log_softmax(own @ live["embedding/student"].T / temperature)
        total += np.sum(generalized(beta, log_softmax(known / temperature), log_q)[right])
        back = np.exp(log_softmax(scores.T)) @ (own @ live["to_teacher/kernel"] + live["to_teacher/bias"])
        log_p = log_softmax(fixed["hidden/teacher"][row, theirs] @ fixed["head/teacher"] / temperature)
        total += kl(log_p, log_softmax(back @ fixed["head/teacher"] / temperature)).sum()
    return total


@pytest.mark.parametrize("case", lanes.others_are_full(CASES, ("forward",)))
def test_value_and_gradients_equal_numpy(case):
    # A seed for which the teacher's moved states are right at some positions and wrong at others.
    models, heads, hidden, tokens = make(3)
    loss = losses.DSKD(**CASES[case])
    found, gradients = compute(loss, models, heads, hidden, tokens)
    arrays = arrays_of(models, heads, hidden)
    fixed = dict(arrays)
    expected = reference(arrays, fixed, tokens, **CASES[case])
    assert float(found) == pytest.approx(expected, rel=1e-6)
    right = [
        x.argmax(1) == tokens["student"][1][row, PREDICTED["student"][row] > 0] for row, x in enumerate(fixed["found"])
    ]
    assert 0 < np.concatenate(right).sum() < 11
    fixed["moved"] = fixed.pop("found")
    gradients = arrays_of(*gradients)
    largest = max(np.abs(x).max() for x in gradients.values())
    for name in ("embedding/teacher", "head/teacher", "hidden/teacher"):
        assert not gradients.pop(name).any(), name
    for name, gradient in gradients.items():
        numeric = np.zeros_like(gradient)
        for index in np.ndindex(*gradient.shape):
            sides = []
            for sign in (1, -1):
                moved = arrays | {name: arrays[name].copy()}
                moved[name][index] += sign * 1e-6
                sides.append(reference(moved, fixed, tokens, **CASES[case]))
            numeric[index] = (sides[0] - sides[1]) / 2e-6
        assert np.abs(gradient - numeric).max() <= 1e-6 * largest, name


@pytest.mark.full
def test_chunks_have_the_same_value_and_gradient(monkeypatch):
    loss, given = losses.DSKD(**CASES["forward"]), make(3)
    whole = compute(loss, *given)
    monkeypatch.setattr(chunks, "LOGITS_BUDGET_BYTES", 1)
    monkeypatch.setattr(chunks, "MIN_POSITIONS", 2)
    cut = jax.value_and_grad(value, argnums=(1, 2, 3))(loss, *given)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), cut, whole)


def test_padding_has_no_weight_and_a_row_does_not_depend_on_others():
    models, heads, hidden, tokens = make()
    rows = {"decoder_loss_weights": PREDICTED["student"]} | {PREFIX + name: array for name, array in ROWS.items()}
    assert float(jnp.sum(losses.DSKD().weights(rows, CausalLM()))) == PREDICTED["student"].sum()
    other = [
        {name: jnp.where((PREDICTED[name] > 0)[..., None], x, 7.0) for name, x in hidden.items()},
        {name: [np.where(PREDICTED[name] > 0, ids, 1) for ids in each] for name, each in tokens.items()},
    ]
    loss = losses.DSKD(**CASES["forward"])
    found = [compute(loss, models, heads, *given)[0] for given in ((hidden, tokens), other)]
    assert float(found[0]) == float(found[1])


@pytest.mark.parametrize("name", PREDICTED)
def test_row_in_which_one_network_predicts_nothing_has_no_loss(name, monkeypatch):
    """As the end of a conversation that is cut before the answer."""
    loss, given, found = losses.DSKD(**CASES["forward"]), make(), []
    for cut in ((name,), tuple(PREDICTED)):
        for each in cut:
            monkeypatch.setitem(PREDICTED, each, PREDICTED[each] * np.array([[1], [0]]))
        found.append(float(value(loss, *given)))
    assert found[0] == found[1] > 0


def test_unsuitable_networks_and_settings_are_refused():
    loss, student, teacher = losses.DSKD(), NETWORKS["student"], NETWORKS["teacher"]
    loss.check(student, teacher)
    assert loss.captures(student, teacher) == ((), ("decoder/output",))
    sizes = dict(vocab_size=len(TEACHER), embedding_dim=3, embed_dim=4, num_layers=1)
    other = dataclasses.replace(teacher, config=LSTMConfig(**sizes))
    with pytest.raises(UserError, match="the token embeddings of teacher have 3 features, its hidden states 4"):
        loss.check(student, other)
    for given, message in (({"beta": 2}, "DSKD.beta=2 is out of range"), ({"temperature": 0}, "not positive")):
        with pytest.raises(UserError, match=message):
            losses.DSKD(**given)
