"""ELMo's language models: sampled softmax against TensorFlow's, full softmax by hand, streams, invalid arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numerics import assert_close

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.kernels import sampled_softmax
from t5x_like.models import build
from t5x_like.models.elmo import ElmoConfig
from t5x_like.models.lstm import LSTMConfig
from t5x_like.objectives import passes
from t5x_like.objectives.bidirectional_lm import BidirectionalLM
from t5x_like.objectives.carry import as_features
from t5x_like.objectives.keys import Keys
from t5x_like.objectives.samplers import LogUniform, Unigram

CONFIG = ElmoConfig(
    vocab_size=30, filters=((1, 4), (3, 5)), character_dim=3, cell_dim=6, projection_dim=4, highway_layers=1,
    dropout_rate=0.0,
)  # fmt: skip
ROWS, LENGTH, INNER = 2, 6, 9
OBJECTIVE = BidirectionalLM(max_characters=INNER, samples=7, unroll_steps=LENGTH)


@pytest.fixture(scope="module")
def params():
    rng, like = np.random.default_rng(0), build.params_shapes(CONFIG, OBJECTIVE)
    return parameters.map_named(lambda _, leaf: jnp.asarray(rng.normal(size=leaf.shape) / 2, jnp.float32), like)


def batch():
    rng = np.random.default_rng(1)
    words, characters = (ROWS, LENGTH), (ROWS, LENGTH, INNER)
    segments = np.ones(words, np.int32)
    segments[1, 4:] = 0
    return {
        "encoder_input_tokens": rng.integers(0, 30, words),
        "encoder_segment_ids": segments,
        "backward_targets": rng.integers(0, 30, words),
        "encoder_input_characters": rng.integers(1, 262, characters),
        "backward_characters": rng.integers(1, 262, characters),
    }


def test_full_softmax_by_hand(params):
    rows = batch()
    found = passes.forward_at_evaluation(OBJECTIVE, params, rows)
    terms = passes.terms(found)
    softmax, hidden = params["objective"]["softmax"], params["model"](rows).hidden
    expected = {}
    for name, states, targets in (
        ("forward", hidden[..., :4], rows["encoder_input_tokens"]),
        ("backward", hidden[..., 4:], rows["backward_targets"]),
    ):
        logits = states @ softmax.kernel[...].T + softmax.bias[...]
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
        expected[name] = jnp.sum(losses * (rows["encoder_segment_ids"] != 0))
    assert_close(terms.sums, expected)
    values = {name: total / weight for name, (total, weight) in terms.metrics.items() if name != "accuracy"}
    both = {f"{name}_loss": each / 10 for name, each in expected.items()}
    assert_close(values, both | {"loss": sum(both.values()) / 2})
    scores = OBJECTIVE.predict(found)["scores"]
    np.testing.assert_allclose(scores.sum(), -sum(expected.values()), rtol=1e-5)


def test_sampled_softmax_equals_tensorflow():
    """Loss and gradients for given samples, among them targets, with TensorFlow's correction by expected counts."""
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    hidden, kernel, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 3, 4), (30, 4), (30,)))
    targets = rng.integers(0, 30, (2, 3))
    samples = sampled_softmax.log_uniform(jax.random.key(0), 12, 30)
    assert np.isin(targets, samples.ids).any() and not np.isin(targets, samples.ids).all()
    values, gradients = jax.value_and_grad(
        lambda *given: sampled_softmax.cross_entropy(*given, targets, samples).sum(), argnums=(0, 1, 2)
    )(hidden, kernel, bias)
    variables = [tf.Variable(each) for each in (hidden, kernel, bias)]
    counts = [np.exp(samples.log_expected_count(ids)) for ids in (targets.reshape(-1, 1), samples.ids)]
    with tf.GradientTape() as tape:
        loss = tf.nn.sampled_softmax_loss(
            variables[1],
            variables[2],
            targets.reshape(-1, 1),
            tf.reshape(variables[0], (6, 4)),
            12,
            30,
            sampled_values=(tf.constant(samples.ids, tf.int64), *map(tf.constant, counts)),
        )
    expected = [tf.convert_to_tensor(each).numpy() for each in tape.gradient(loss, variables)]
    names = ("hidden", "kernel", "bias")
    assert_close(
        {"loss": values, **dict(zip(names, gradients, strict=True))},
        {"loss": loss.numpy().sum(), **dict(zip(names, expected, strict=True))},
    )


def test_samples_are_those_of_successive_draws(tmp_path):
    """Frequencies of ids and numbers of draws equal those of a loop that draws until there are enough ids."""
    number, vocab = 6, 12
    of_rank = np.log1p(1 / np.arange(1, vocab + 1)) / np.log(vocab + 1)
    check_samples(LogUniform(number), of_rank)
    counts = [1, 1, 1, 90, 60, 40, 9, 5, 5, 2, 1, 1]  # the special ids and the id after the words have the count 1
    (tmp_path / "vocab.txt").write_text("".join(f"w{at} {count}\n" for at, count in enumerate(counts[3:-1])))
    check_samples(Unigram(number, str(tmp_path / "vocab.txt")), np.array(counts) / sum(counts))


def check_samples(sampler, probabilities):
    vocab, trials, number = len(probabilities), 4000, sampler.number
    found = jax.vmap(lambda key: sampler.draw(key, vocab)[:2])(jax.random.split(jax.random.key(0), trials))
    rng = np.random.default_rng(0)
    included, draws = np.zeros(vocab), []
    for _ in range(trials):
        ids = rng.choice(vocab, 2000, p=probabilities)
        first = np.sort(np.unique(ids, return_index=True)[1])[number - 1]
        draws.append(first + 1)
        included[np.unique(ids[: first + 1])] += 1
    frequencies = np.bincount(np.asarray(found[0]).ravel(), minlength=vocab) / trials
    np.testing.assert_allclose(frequencies, included / trials, atol=0.03)
    assert np.mean(found[1]) == pytest.approx(np.mean(draws), rel=0.02)
    assert all(len(set(ids)) == number for ids in np.asarray(found[0])[:50])


@pytest.mark.full
def test_training_samples_and_estimates_the_loss(params):
    """The sampled loss with nearly all words is close to the full one, and each direction has a sample of its own."""
    rows = batch()
    many = BidirectionalLM(max_characters=INNER, samples=29, unroll_steps=LENGTH)
    keys = Keys(dropout=jax.random.key(0), step=jax.random.key(1))
    full = passes.terms(passes.forward_at_evaluation(OBJECTIVE, params, rows)).sums
    sampled = passes.terms(passes.forward(many, params, rows, keys=keys))
    for name, value in full.items():
        assert float(sampled.sums[name]) == pytest.approx(float(value), rel=0.1)
    few = passes.terms(passes.forward(OBJECTIVE, params, rows, keys=keys))
    assert few.metrics.keys() == {"loss", "forward_loss", "backward_loss"}
    other = Keys(dropout=jax.random.key(0), step=jax.random.key(2))
    assert passes.terms(passes.forward(OBJECTIVE, params, rows, keys=other)).sums != few.sums


def test_loss_is_the_mean_of_both_directions_times_the_unrolled_steps():
    assert OBJECTIVE.coefficients == {"forward": LENGTH / 2, "backward": LENGTH / 2}


def test_state_is_carried_in_both_directions(params):
    rows = {name: x if name != "encoder_segment_ids" else np.ones_like(x) for name, x in batch().items()}
    initial = as_features(OBJECTIVE.initial_carry(CONFIG, ROWS))

    def run(part, carry):
        found = passes.forward(OBJECTIVE, params, {**{name: x[:, part] for name, x in rows.items()}, **carry})
        return passes.terms(found).sums, as_features(found.carry)

    whole, last = run(slice(None), initial)
    first, carry = run(slice(0, 3), initial)
    second, end = run(slice(3, None), carry)
    assert_close({name: first[name] + second[name] for name in whole}, whole)
    assert_close(end, last)


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (CONFIG, {"samples": 30}, "samples=30 of BidirectionalLM: not fewer than the vocab_size=30"),
        (CONFIG, {"samples": 0}, "samples=0 is not a positive number"),
        (CONFIG, {"unroll_steps": -1}, "unroll_steps=-1 is not a positive number"),
        (LSTMConfig(vocab_size=30), {}, "LSTMConfig does not fit BidirectionalLM"),
    ],
)
def test_invalid_settings_raise(config, settings, message):
    with pytest.raises(UserError, match=message):
        build.params_shapes(config, BidirectionalLM(**{"samples": 7} | settings))
