"""Losses across tokenizers against NumPy in float64, row by row and token by token, with their gradients."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import lanes
import numpy as np
import pytest
from aligned_cases import PREDICTED, ROWS, STUDENT, TEACHER, Config, compute, groups, inputs, views

from t5x_like.data.retokenized import STUDENT_GROUPS, STUDENT_WORDS, TEACHER_GROUPS, TEACHER_WORDS
from t5x_like.distillation import losses
from t5x_like.distillation.loss import ModelSpec
from t5x_like.distillation.losses.across_tokenizers import TEACHER as PREFIX
from t5x_like.errors import UserError
from t5x_like.kernels import chunks
from t5x_like.kernels.top_k import TopK
from t5x_like.objectives.causal_lm import CausalLM
from t5x_like.vocabularies import token_matches


def weight(loss):
    rows = {PREFIX + name: array for name, array in ROWS.items()} | {"decoder_loss_weights": PREDICTED["student"]}
    rows[PREFIX + "decoder_loss_weights"] = PREDICTED["teacher"]
    return float(jnp.sum(loss.weights(jax.tree.map(jnp.asarray, rows), CausalLM())))


def softmax(x):
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def sorted_distance(p, q, k=None):
    size = max(len(p), len(q))
    p, q = (np.sort(np.pad(x, (0, size - len(x))))[::-1][:k] for x in (p, q))
    return np.abs(p - q).sum()


# ---- NumPy -----------------------------------------------------------------------------------------------------------


def uld(logits, targets, *, temperature=1.0, by_position=False, k=None):
    total, pairs = 0.0, []
    for row in range(2):
        if by_position:
            number = min(PREDICTED[name][row].sum() for name in PREDICTED)
            pairs += [(row, at, at) for at in range(number)]
        else:
            pairs += [(row, ours[0], theirs[0]) for ours, theirs in groups(row)]
    for row, ours, theirs in pairs:
        p, q = (
            softmax(logits["teacher"][row, theirs] / temperature),
            softmax(logits["student"][row, ours] / temperature),
        )
        total += sorted_distance(p, q, k)
    return total


def min_ed(logits, targets, *, temperature=1.0):
    mapping, total = token_matches.nearest(TEACHER, STUDENT), 0.0
    for row in range(2):
        for ours, theirs in groups(row):
            p = softmax(logits["teacher"][row, theirs[0]] / temperature)
            q = softmax(logits["student"][row, ours[0]] / temperature)
            mapped = np.zeros(len(STUDENT))
            for index, probability in enumerate(p):
                mapped[mapping[index]] += probability
            present = mapped > 0
            total += temperature**2 * np.sum(mapped[present] * (np.log(mapped[present]) - np.log(q[present])))
    return total


def gold(logits, targets, *, beta=0.5, temperature=1.0, matched_weight=None):
    pairs = [
        (ours, theirs)
        for theirs, token in enumerate(TEACHER.of)
        for ours, other in enumerate(STUDENT.of)
        if token is not None and token == other
    ] + [(0, 0)]
    matched = len(pairs) / len(TEACHER) if matched_weight is None else matched_weight
    total = 0.0
    for row in range(2):
        for group in groups(row):
            merged = []
            for name, where in zip(("student", "teacher"), group, strict=True):
                p = softmax(logits[name][row] / temperature)
                earlier = np.prod([max(p[at, targets[name][row, at]], 1e-8) for at in where[:-1]])
                merged.append(p[where[-1]] * earlier)
            q, p = (np.maximum([x[pair[side]] for pair in pairs], 1e-8) for side, x in enumerate(merged))
            m = beta * p + (1 - beta) * q
            if beta in (0, 1):
                value = np.sum(p * np.log(p / q)) if beta == 0 else np.sum(q * np.log(q / p))
            else:
                value = beta * np.sum(p * np.log(p / m)) + (1 - beta) * np.sum(q * np.log(q / m))
            rest = [np.delete(x, [pair[side] for pair in pairs]) for side, x in enumerate(merged)]
            total += matched * value + (1 - matched) * sorted_distance(*rest)
    return total


def alm(logits, targets, *, words=False, tau=100.0, outcome=False, max_bias=None):
    names = (STUDENT_WORDS, TEACHER_WORDS) if words else (STUDENT_GROUPS, TEACHER_GROUPS)
    total = 0.0
    for row in range(2):
        for group in groups(row, names):
            log_y, biases = [], []
            for name, table, where in zip(("student", "teacher"), (STUDENT, TEACHER), group, strict=True):
                p = softmax(logits[name][row])
                log_p = sum(np.log(p[at, targets[name][row, at]]) for at in where)
                after = where[-1] + 1
                if outcome and after < p.shape[0] and PREDICTED[name][row, after]:
                    log_p += np.log(p[after, [at for at, token in enumerate(table.of) if starts_word(table, at)]].sum())
                log_y.append(min(log_p / tau, -1e-6))
                last = table.of[targets[name][row, where[-1]]]
                longer = [at for at, token in enumerate(table.of) if token and last and is_longer(token, last)]
                biases.append(p[where[-1], longer].sum())
            if max_bias is None or max(biases) < max_bias:
                ours, theirs = log_y
                total -= np.exp(theirs) * ours + (1 - np.exp(theirs)) * np.log(1 - np.exp(ours))
    return total


def starts_word(table, index):
    return index == 0 or (table.of[index] or b"").startswith(b" ")


def is_longer(token, last):
    return token != last and token.startswith(last)


CASES = {
    "uld": (losses.ULD(), uld),
    "uld at T=2": (losses.ULD(temperature=2.0), functools.partial(uld, temperature=2.0)),
    "uld by position": (losses.ULD(align="positions"), functools.partial(uld, by_position=True)),
    "uld of 4": (losses.ULD(k=4), functools.partial(uld, k=4)),
    "uld of 12": (losses.ULD(k=12), functools.partial(uld, k=12)),  # the student has 11 tokens
    "min_ed": (losses.MinED(), min_ed),
    "min_ed at T=2": (losses.MinED(temperature=2.0), functools.partial(min_ed, temperature=2.0)),
    "gold": (losses.GOLD(), gold),
    "gold, forward": (losses.GOLD(beta=0.0, temperature=0.9), functools.partial(gold, beta=0, temperature=0.9)),
    "gold, reverse": (losses.GOLD(beta=1.0, matched_weight=0.7), functools.partial(gold, beta=1, matched_weight=0.7)),
    "alm": (losses.ALM(), alm),
    "alm at tau=5": (losses.ALM(tau=5.0), functools.partial(alm, tau=5.0)),
    "alm of words": (losses.ALM(chunks="words", tau=10.0), functools.partial(alm, words=True, tau=10.0)),
    "alm with outcomes": (
        losses.ALM(chunks="words", tau=2.0, outcome=True),
        functools.partial(alm, words=True, tau=2.0, outcome=True),
    ),
    "alm without bias": (losses.ALM(tau=2.0, max_bias=0.05), functools.partial(alm, tau=2.0, max_bias=0.05)),
}


def numeric_gradient(function, logits, targets, name, step=1e-6):
    gradient = np.zeros_like(logits[name])
    for index in np.ndindex(*gradient.shape):
        sides = []
        for sign in (1, -1):
            moved = {key: x.copy() for key, x in logits.items()}
            moved[name][index] += sign * step
            sides.append(function(moved, targets))
        gradient[index] = (sides[0] - sides[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize("case", lanes.others_are_full(CASES, ("uld", "min_ed at T=2", "gold", "alm with outcomes")))
def test_value_and_gradient_equal_numpy(case):
    loss, reference = CASES[case]
    logits, targets = inputs()
    expected = reference(logits, targets)
    value, gradients = compute(loss, logits, targets)
    assert float(value) == pytest.approx(expected, rel=1e-6)
    assert not np.any(gradients["teacher"])
    numeric = numeric_gradient(reference, logits, targets, "student")
    assert np.abs(np.asarray(gradients["student"]) - numeric).max() <= 1e-6 * max(1.0, np.abs(numeric).max())


@pytest.mark.parametrize("case", lanes.others_are_full(["uld", "gold", "alm with outcomes"], ("gold",)))
def test_chunks_have_the_same_value_and_gradient(case, monkeypatch):
    loss, _ = CASES[case]
    logits, targets = inputs(1)
    whole = compute(loss, logits, targets)
    monkeypatch.setattr(chunks, "LOGITS_BUDGET_BYTES", 1)
    monkeypatch.setattr(chunks, "MIN_POSITIONS", 2)
    cut = compute(loss, logits, targets)
    assert float(cut[0]) == pytest.approx(float(whole[0]), rel=1e-6)
    np.testing.assert_allclose(cut[1]["student"], whole[1]["student"], atol=1e-6)


@pytest.mark.parametrize(("case", "expected"), [("uld", 6), ("uld by position", 11), ("alm", 6), ("alm of words", 3)])
def test_weight_is_the_number_of_comparisons(case, expected):
    assert weight(CASES[case][0]) == expected


def top_k(logits, k):
    """Returns the k largest logits of each position, and the mass of the others."""
    order = np.argsort(-logits, axis=-1)
    values, rest = np.take_along_axis(logits, order[..., :k], -1), np.take_along_axis(logits, order[..., k:], -1)
    tail = np.log(np.exp(rest).sum(axis=-1)) if rest.shape[-1] else np.full(logits.shape[:2], -np.inf)
    return TopK(*(jnp.asarray(x) for x in (values.astype(np.float32), order[..., :k].astype(np.int32), tail)))


@pytest.mark.parametrize(
    ("case", "k"),
    lanes.others_are_full(itertools.product(("uld", "min_ed", "gold", "alm"), (13, 4)), [("gold", 4)]),
)
def test_stored_logits_are_read_with_the_tail_spread_evenly(case, k):
    loss, reference = CASES[case]
    logits, targets = inputs(2)
    stored = top_k(logits["teacher"], k)
    even = np.array(logits["teacher"])
    for index in np.ndindex(*even.shape[:2]):
        rest = np.argsort(-even[index])[k:]
        if len(rest):
            even[index][rest] = np.log(np.exp(even[index][rest]).sum() / len(rest))
    value, _ = compute(loss, logits, targets, stored)
    assert float(value) == pytest.approx(reference(logits | {"teacher": even}, targets), rel=1e-6)


def test_equal_networks_have_no_distance():
    logits, targets = inputs()
    student, _ = views(logits, targets)
    batch = student.batch | {name: student.batch["decoder_target_tokens"] * 0 for name in ROWS}
    batch |= dict.fromkeys((STUDENT_GROUPS, TEACHER_GROUPS), jnp.tile(jnp.arange(1, 8), (2, 1)))
    teacher = dataclasses.replace(student, batch=batch)
    for loss in (losses.ULD(), losses.MinED(), losses.GOLD()):
        assert float(loss({}, student, teacher)) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.ULD(align="bytes"), "ULD.align='bytes' is unknown"),
        (lambda: losses.ULD(k=0), "ULD.k=0 is not positive"),
        (lambda: losses.ULD(temperature=0), "ULD.temperature=0 is not positive"),
        (lambda: losses.GOLD(beta=1.5), "GOLD.beta=1.5 is out of range"),
        (lambda: losses.ALM(chunks="lines"), "ALM.chunks='lines' is unknown"),
        (lambda: losses.ALM(tau=0), "ALM.tau=0 is not positive"),
        (lambda: losses.ALM(outcome=True), "only words have an outcome"),
        (lambda: losses.ALM(max_bias=2), "ALM.max_bias=2 is not a probability"),
    ],
)
def test_invalid_settings_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_unknown_tokenizers_and_predictions_are_refused():
    student, teacher = (ModelSpec(name, Config(20), CausalLM(), tokens=STUDENT) for name in ("student", "teacher"))
    losses.ULD().check(student, teacher)
    for changed, message in (
        (dataclasses.replace(teacher, tokens=None), "the tokenizer of teacher is not known"),
        (
            dataclasses.replace(teacher, config=Config(5)),
            "the vocabulary of teacher has 11 tokens, but its model only 5",
        ),
    ):
        with pytest.raises(UserError, match=message):
            losses.ULD().check(student, changed)
    with pytest.raises(UserError, match="ULD.prediction='masked_lm'"):
        losses.ULD(prediction="masked_lm").check(student, teacher)
