"""Classification at every token: the gains, the loss as written in the paper, and the head of one state."""

import jax
import numpy as np
from families import FAMILIES
from objective_case import LABELS, Case

from t5x_like.objectives import heads
from t5x_like.objectives.label_gain import LabelGain, gains
from t5x_like.objectives.passes import forward_at_evaluation, loss


def test_gains_grow_from_0_to_1():
    segments = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    expected = [[0, 0.25, 0.5, 0.75, 1], [0, 0.5, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    np.testing.assert_allclose(gains(segments), expected)


def test_loss_is_the_sum_of_gain_and_cross_entropy_and_metrics_are_of_the_last_token():
    objective = LabelGain(LABELS, head=heads.ReluLastToken(size=5))
    case = Case(objective, "gpt2", lambda rng: rng.integers(-1, 3, (32, 1)))
    params, batch = case.params(), case.batch()
    found, hidden = jax.jit(
        lambda params, batch: (
            loss(forward_at_evaluation(objective, params, batch), {"label_gain": 1.0}),
            params["model"](batch).hidden,
        )
    )(params, batch)
    total, terms = found
    head = params["objective"]["sequence_classification"]
    states = np.asarray(hidden, np.float64)
    dense = np.maximum(states @ np.asarray(head.dense.kernel[...]) + np.asarray(head.dense.bias[...]), 0)
    logits = dense @ np.asarray(head.classifier.kernel[...]) + np.asarray(head.classifier.bias[...])
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected, nll, correct, known = 0.0, 0.0, 0, 0
    for row, label in enumerate(batch["label"][:, 0]):
        n = int((batch["decoder_segment_ids"][row] != 0).sum())
        if n == 0 or label < 0:
            continue
        losses = -log_probabilities[row, :n, label]
        expected += losses[-1] if n == 1 else sum(i / (n - 1) * losses[i] for i in range(n))
        nll, known = nll + losses[-1], known + 1
        correct += logits[row, n - 1].argmax() == label
    assert 0 < known < 26
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    np.testing.assert_allclose(
        [*terms.metrics["loss"], *terms.metrics["accuracy"]], [nll, known, correct, known], rtol=1e-5
    )


def test_published_head_has_30_hidden_units():
    head = heads.ReluLastToken().make(FAMILIES["gpt2"].config, 2, key=jax.random.key(0))
    assert head.dense.kernel.shape == (FAMILIES["gpt2"].config.embed_dim, 30) and head.classifier.kernel.shape == (
        30,
        2,
    )
