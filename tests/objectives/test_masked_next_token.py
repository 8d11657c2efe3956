"""GPT-BERT's objective: which rows are causal, which tokens are masked, and which output predicts them."""

import functools

import jax
import numpy as np
import pytest
from families import CONFIGS, random_model
from objective_case import Case

from t5x_like.data import batches
from t5x_like.errors import UserError
from t5x_like.models.unilm import RANKS
from t5x_like.objectives import passes
from t5x_like.objectives.masked_next_token import CAUSAL, MASKED, MaskedNextToken
from t5x_like.optimizers import schedules

CLS, MASK, SPECIAL = 2, 3, (0, 1, 2, 9)
ROWS, LENGTH, RATE, STEP = 512, 32, 0.3, 3
OBJECTIVE = MaskedNextToken(
    mask_id=MASK,
    special_ids=SPECIAL,
    causal_rows=1,
    of_rows=4,
    mask_rate=schedules.linear(2 * RATE, total_steps=2 * STEP),
    evaluation_mask_rate=0.4,
)


@pytest.mark.parametrize(("causal", "of", "batch"), [(1, 16, 12), (1, 16, 32), (3, 8, 5), (0, 1, 4), (1, 1, 4)])
def test_share_of_causal_rows_is_exact_over_the_run(causal, of, batch):
    objective = MaskedNextToken(mask_id=MASK, causal_rows=causal, of_rows=of)
    counts = [objective.is_causal(step, batch, key=jax.random.key(step)).sum() for step in range(2 * of)]
    np.testing.assert_array_equal(np.cumsum(counts), np.arange(1, 2 * of + 1) * batch * causal // of)
    assert objective.coefficients == {MASKED: 1 - causal / of, CAUSAL: causal / of}


def test_every_microbatch_has_its_share_of_causal_rows():
    """Row i is in microbatch i % microbatches, and a batch ramp fills the first ones alone."""
    objective = MaskedNextToken(mask_id=MASK, causal_rows=1, of_rows=16)
    for microbatches in (16, 48):
        causal = np.asarray(objective.is_causal(0, 1024 * microbatches, key=jax.random.key(0)))
        shares = causal.reshape(-1, microbatches).mean(0)
        assert (shares > 0.5 / 16).all() and (shares < 2 / 16).all()


def packed_rows():
    """Returns rows of two segments and padding, whose tokens are random."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(4, 40, (ROWS, LENGTH))
    lengths = np.stack([rng.integers(8, 15, ROWS), rng.integers(8, 16, ROWS)])
    segments = (np.arange(LENGTH) < lengths[0][:, None]) + 0
    second = (np.arange(LENGTH) >= lengths[0][:, None]) & (np.arange(LENGTH) < lengths.sum(0)[:, None])
    segments[second] = 2
    positions = np.arange(LENGTH) - np.where(second, lengths[0][:, None], 0)
    tokens[positions == 0] = CLS
    same = np.pad(segments[:, :-1] == segments[:, 1:], ((0, 0), (0, 1))) & (segments > 0)
    batch = {
        "encoder_input_tokens": np.where(segments > 0, tokens, 0),
        "encoder_segment_ids": segments,
        "encoder_positions": positions * (segments > 0),
        "next_tokens": np.where(same, np.roll(tokens, -1, axis=1), 0),
        "next_weights": same,
    }
    return {name: array.astype(np.int32) for name, array in batch.items()}


@functools.cache
def program():
    """Returns a function of rows and a step that prepares them for training and for evaluation."""
    params = {"model": random_model(CONFIGS["gptbert"])}

    @jax.jit
    def run(batch, step):
        trained = OBJECTIVE.prepare(params, batch, key=jax.random.key(0), step=step)
        return trained, OBJECTIVE.prepare(params, batch, key=None, step=0)

    return run


@functools.cache
def prepared():
    """Returns rows as they are read, after `prepare` in a step in which the rate is RATE, and which are causal."""
    batch = packed_rows()
    found = {name: np.asarray(array) for name, array in program()(batch, STEP)[0].items()}
    return batch, found, found[RANKS].any(axis=1)


def test_causal_rows_predict_all_tokens_of_what_they_see():
    batch, found, causal = prepared()
    assert causal.sum() == ROWS // 4
    np.testing.assert_array_equal(found["encoder_input_tokens"][causal], batch["encoder_input_tokens"][causal])
    np.testing.assert_array_equal(found[f"{CAUSAL}_weights"], batch["next_weights"] * causal[:, None])
    np.testing.assert_array_equal(found[RANKS], np.arange(LENGTH) * causal[:, None])
    assert not found[f"{MASKED}_weights"][causal].any()


def test_masked_tokens_are_predicted_by_the_token_before():
    batch, found, _ = prepared()
    weights, tokens = found[f"{MASKED}_weights"], batch["encoder_input_tokens"]
    rows, at = np.nonzero(weights)
    np.testing.assert_array_equal(found["next_tokens"][rows, at], tokens[rows, at + 1])
    changed = np.nonzero(found["encoder_input_tokens"] != tokens)
    assert (weights[changed[0], changed[1] - 1] == 1).all(), "a token changes that is not predicted"
    assert not np.isin(tokens[rows, at + 1], SPECIAL).any(), "special tokens are masked"
    assert (batch["encoder_segment_ids"][rows, at] == batch["encoder_segment_ids"][rows, at + 1]).all()


def test_masks_have_the_published_distribution():
    """Per segment ⌊rate · tokens + u⌋ tokens and what the last span adds; 80 % [MASK], 10 % random, 10 % kept."""
    batch, found, causal = prepared()
    masked = ~causal
    tokens, segments, positions = (
        batch[f"encoder_{name}"][masked] for name in ("input_tokens", "segment_ids", "positions")
    )
    chosen = np.pad(found[f"{MASKED}_weights"][masked][:, :-1], ((0, 0), (1, 0))) > 0
    sizes, counts = (
        np.stack([(given & (segments == part)).sum(1) for part in (1, 2)]) for given in (positions > 0, chosen)
    )
    assert (counts >= np.maximum(np.floor(RATE * sizes), 1)).all() and (counts <= np.floor(RATE * sizes + 1) + 2).all()
    read = found["encoder_input_tokens"][masked][chosen]
    shares = [np.mean(read == MASK), np.mean((read != MASK) & (read != tokens[chosen]))]
    # Spans are replaced as a whole, and a random token may be the old one.
    np.testing.assert_allclose(shares, [0.8, 0.1 * 35 / 36], atol=0.03)
    text = (positions > 0) & ~np.isin(tokens, SPECIAL)
    # The simulation: spans of one to three tokens from the first on, in random order.
    rng, simulated = np.random.default_rng(1), []
    for size in np.repeat(sizes.reshape(-1), 20):
        spans = np.repeat(np.arange(size), rng.integers(1, 4, size))[:size]
        order = rng.permutation(size)[spans]
        wanted = max(1, int(size * RATE + rng.random()))
        simulated.append((order <= np.sort(order)[wanted - 1]).sum() / size)
    # Special tokens are not masked, so that others are; one of 36 tokens is special.
    np.testing.assert_allclose(chosen.sum() / text.sum(), np.mean(simulated) * 36 / 35, rtol=0.03)


def test_losses_are_the_log_probabilities_of_the_next_tokens():
    params = Case(OBJECTIVE, "gptbert").params(max_length=LENGTH)
    ready = {name: rows[:8] for name, rows in prepared()[1].items()}

    @jax.jit
    def run(params, ready):
        model, head = params["model"], params["objective"]["masked_lm"]
        found = passes.terms(passes.forward(OBJECTIVE, params, ready))
        return found, head.logits(model, head(model(ready).hidden))

    terms, logits = run(params, ready)
    logits = np.asarray(logits, np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = -np.take_along_axis(logs, ready["next_tokens"][..., None], -1)[..., 0]
    weights = {term: ready[f"{term}_weights"] for term in (MASKED, CAUSAL)}
    for term, metric in ((MASKED, "masked_loss"), (CAUSAL, "causal_loss")):
        expected = (nll * weights[term]).sum(), weights[term].sum()
        assert expected[1] > 0
        np.testing.assert_allclose(terms.sums[term], expected[0], rtol=1e-5)
        np.testing.assert_allclose(terms.metrics[metric], expected, rtol=1e-5)
    np.testing.assert_allclose(terms.metrics["loss"][1], sum(each.sum() for each in weights.values()))


def test_the_mask_rate_follows_its_schedule_and_evaluation_is_fixed():
    batch = packed_rows()
    text = (batch["encoder_positions"] > 0).sum() * 3 / 4
    (first, fixed), (last, again) = (
        [each[f"{MASKED}_weights"] for each in program()(rows, step)]
        for rows, step in ((batch, 0), ({name: rows[::-1] for name, rows in batch.items()}, 2 * STEP))
    )
    assert first.sum() / text > 0.55 and last.sum() / text < 0.2
    assert 0.4 < fixed.sum() / (text * 4 / 3) < 0.55
    np.testing.assert_array_equal(fixed, again[::-1], "masks of an evaluation depend on the place of a row")


def test_invalid_arguments_and_models():
    for changes, message in (
        ({"mask_id": -1}, "mask_id=-1"),
        ({"special_ids": (3, -2)}, "special_ids=-2"),
        ({"causal_rows": 5, "of_rows": 4}, "causal_rows=5 of of_rows=4"),
        ({"mask_rate": 1.0}, "mask_rate=1.0"),
        ({"evaluation_mask_rate": 0.0}, "evaluation_mask_rate=0.0"),
        ({"z_loss": -1.0}, "z_loss=-1.0"),
    ):
        with pytest.raises(UserError, match=message):
            MaskedNextToken(**{"mask_id": MASK} | changes)
    with pytest.raises(UserError, match="the model is a BertConfig"):
        OBJECTIVE.networks(CONFIGS["bert"])
    with pytest.raises(UserError, match="token id 40 is not below vocab_size=40"):
        MaskedNextToken(mask_id=40).networks(CONFIGS["gptbert"])


def test_rows_of_a_task_are_features_of_the_objective():
    """The first token of a segment is read and not predicted; the last one predicts nothing."""
    inputs = np.array([[CLS, 5, 6, 7], [CLS, 8, 0, 0]])
    found = batches.from_arrays(OBJECTIVE.features, {"inputs": inputs}, counts={"inputs": np.array([4, 2])})
    np.testing.assert_array_equal(found["next_tokens"], [[5, 6, 7, 0], [8, 0, 0, 0]])
    np.testing.assert_array_equal(found["next_weights"], [[1, 1, 1, 0], [1, 0, 0, 0]])
