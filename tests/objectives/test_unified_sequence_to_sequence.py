"""UniLM's fine-tuning and generation: corrupted targets, and decoding that equals full forward passes."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, random_model, scanned

from t5x_like import parameters
from t5x_like.data import batches
from t5x_like.decoding.generate import generate
from t5x_like.decoding.score import score
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.models.unilm import RANKS
from t5x_like.objectives import passes
from t5x_like.objectives.unified_sequence_to_sequence import UnifiedSequenceToSequence

CLS, SEP, MASK = 2, 3, 4
OBJECTIVE = UnifiedSequenceToSequence(cls_id=CLS, sep_id=SEP, mask_id=MASK)
MAX_LENGTH = 5


@functools.cache
def random_params(scan=False):
    config = FAMILIES["unilm"].config
    model = random_model(scanned(config) if scan else config)
    heads = jax.eval_shape(OBJECTIVE.init, jax.random.key(0), model)
    rng = np.random.default_rng(3)
    heads = parameters.map_named(lambda name, leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), heads)
    return {"model": model, "objective": heads}


def examples():
    """Sources of different lengths, and targets; all end in [SEP]."""
    inputs = np.array([[7, 8, 9, SEP, 0], [10, SEP, 0, 0, 0], [11, 12, 13, 14, SEP]])
    targets = np.array([[20, 21, SEP], [22, SEP, 0], [23, 24, SEP]])
    return batches.from_arrays(OBJECTIVE.features, {"inputs": inputs, "targets": targets})


def full_forward(params, source, generated):
    """Returns the logits of the next token: [CLS] source generated [MASK], without a cache."""
    tokens = [*source, *generated, MASK]
    batch = {
        "encoder_input_tokens": tokens,
        "token_types": [4] * len(source) + [5] * (len(generated) + 1),
        RANKS: [0] * len(source) + list(range(1, len(generated) + 2)),
    }
    batch = {name: jnp.array([row], jnp.int32) for name, row in batch.items()}
    hidden = params["model"](batch).hidden[:, -1:]
    return OBJECTIVE.generator(params).unembed(hidden)[0, 0]


def sources(batch):
    rows = zip(batch["decoder_input_tokens"], batch["decoder_prefix"], strict=True)
    return [row[in_source > 0].tolist() for row, in_source in rows]


def generated(params, batch, **settings):
    decoding = Decoding(max_length=MAX_LENGTH, eos_ids=(SEP,), bos_id=CLS, **settings)
    return jax.jit(lambda params, batch: generate(OBJECTIVE.generator(params), batch, decoding))(params, batch)


@pytest.mark.full
@pytest.mark.parametrize("scan", [False, True])
def test_greedy_generation_equals_full_forward_passes(scan):
    params, batch = random_params(scan), examples()
    found = generated(params, batch)
    for row, source in enumerate(sources(batch)):
        assert source[0] == CLS and source[-1] == SEP
        expected, log_probability = [], 0.0
        while len(expected) < MAX_LENGTH and SEP not in expected:
            logits = full_forward(params, source, expected)
            expected.append(int(jnp.argmax(logits)))
            log_probability += jax.nn.log_softmax(logits)[expected[-1]]
        assert found.tokens[row, 0, : len(expected)].tolist() == expected and found.lengths[row, 0] == len(expected)
        np.testing.assert_allclose(found.log_probability[row, 0], log_probability, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_beam_search_finds_more_probable_texts_and_scores_them_exactly():
    params, batch = random_params(), examples()
    greedy, beams = generated(params, batch), generated(params, batch, beams=5, alpha=0.0)
    assert (beams.log_probability[:, 0] >= greedy.log_probability[:, 0] - 1e-5).all()
    for row, source in enumerate(sources(batch)):
        text = beams.tokens[row, 0, : int(beams.lengths[row, 0])].tolist()
        steps = [jax.nn.log_softmax(full_forward(params, source, text[:n]))[token] for n, token in enumerate(text)]
        np.testing.assert_allclose(beams.log_probability[row, 0], sum(steps), rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_evaluation_scores_targets_as_generation_does():
    params, batch = random_params(), examples()
    scored = score(OBJECTIVE.generator(params), batch)
    loss, weight = passes.terms(passes.forward_at_evaluation(OBJECTIVE, params, batch)).metrics["loss"]
    expected = []
    for row, source in enumerate(sources(batch)):
        weights = batch["decoder_loss_weights"][row] > 0
        text = batch["decoder_target_tokens"][row][weights].tolist()
        steps = [jax.nn.log_softmax(full_forward(params, source, text[:n]))[token] for n, token in enumerate(text)]
        expected.append(sum(steps))
    np.testing.assert_allclose(scored.log_probability, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, -sum(expected), rtol=1e-4)
    assert weight == 8


def test_generation_ends_where_mask_has_no_position():
    config = dataclasses.replace(FAMILIES["unilm"].config, max_length=9)
    model = random_model(config)
    params = random_params() | {"model": model}
    found = generated(params, {name: rows[2:] for name, rows in examples().items()}, min_length=5)
    # [CLS] and five tokens of the source leave three of nine positions.
    assert found.lengths.tolist() == [[3]]


def test_training_corrupts_a_part_of_the_target():
    length = 400
    inputs, targets = np.full((2, 6), 9), np.full((2, length), 8)
    inputs[:, -1] = targets[:, -1] = SEP
    inputs[1, 4:] = SEP, 0  # a shorter source
    batch = batches.from_arrays(OBJECTIVE.features, {"inputs": inputs, "targets": targets})
    params = random_params()
    rows = OBJECTIVE.prepare(params, batch, key=jax.random.key(0), step=0)
    chosen = np.array(rows["masked_weights"])
    assert (chosen.sum(1) == round(0.7 * length)).all() and not (chosen[0] == chosen[1]).all()
    for row, first in enumerate((7, 6)):
        read = np.array(rows["encoder_input_tokens"][row])
        assert read[:first].tolist() == [CLS, *inputs[row, : first - 1]]
        target, at = read[first : first + length], chosen[row] > 0
        assert (target[~at] == targets[row][~at]).all()
        masks, kept = (target[at] == MASK).mean(), (target[at] == targets[row][at]).mean()
        np.testing.assert_allclose([masks, kept], [0.8, 0.1], atol=0.06)
        assert rows["masked_positions"][row].tolist() == list(range(first, first + length))
        after = [0] * (7 - first)
        assert rows["token_types"][row].tolist() == [4] * first + [5] * length + after
        assert rows[RANKS][row].tolist() == [0] * first + list(range(first, first + length)) + after
        assert rows["encoder_segment_ids"][row].tolist() == [1] * (first + length) + after
    assert OBJECTIVE.prepare(params, batch, key=None, step=0) is batch


def test_training_loss_reads_the_chosen_positions():
    params, batch = random_params(), examples()
    rows = OBJECTIVE.prepare(params, batch, key=jax.random.key(1), step=0)
    hidden = params["model"](rows).hidden
    logits = jax.nn.log_softmax(OBJECTIVE.generator(params).unembed(hidden))
    expected, count = 0.0, 0
    for row, (source, targets) in enumerate(
        zip(sources(batch), ([20, 21, SEP], [22, SEP], [23, 24, SEP]), strict=True)
    ):
        for number, token in enumerate(targets):
            if rows["masked_weights"][row, number]:
                expected, count = expected - logits[row, len(source) + number, token], count + 1
    loss, weight = passes.terms(passes.forward(OBJECTIVE, params, rows)).metrics["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert weight == count == rows["masked_weights"].sum() == 5  # 70 % of 3, 2 and 3 tokens, rounded


def test_a_source_does_not_see_its_target_and_a_target_not_its_future():
    params, batch = random_params(), examples()
    rows = OBJECTIVE.prepare(params, batch, key=jax.random.key(1), step=0)
    embedded = params["model"].embed(rows)["encoder"]
    jacobian = jax.jacobian(lambda x: params["model"].trunk({"encoder": x}, rows).hidden[0])(embedded)
    influence = np.abs(jacobian[:, :, 0]).max(axis=(1, 3)) > 0
    source, total = 5, 8  # [CLS] and three tokens and [SEP], then three tokens
    index = np.arange(total)
    expected = (index < source) | ((index[None] <= index[:, None]) & (index[:, None] >= source))
    np.testing.assert_array_equal(influence[:total, :total], expected)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (FAMILIES["bert"].config, "the model is a BertConfig, whose source would see the target"),
        (dataclasses.replace(FAMILIES["unilm"].config, num_token_types=2), "num_token_types=2: .* Give 6"),
    ],
)
def test_model_without_the_masks_and_types_raises(config, message):
    with pytest.raises(UserError, match=message):
        OBJECTIVE.networks(config)


@pytest.mark.parametrize("settings", [{"mask_rate": 0.0}, {"mask_id": -1}])
def test_invalid_settings_raise(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        UnifiedSequenceToSequence(**settings)
