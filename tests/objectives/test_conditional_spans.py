"""Conditional spans: losses by hand, a beam against all pairs, positions of answers, and invalid settings."""

import itertools

import jax
import numpy as np
import pytest
from objective_cases import read_terms
from scipy.special import erf

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.models.bert import BertConfig
from t5x_like.models.outputs import Outputs
from t5x_like.objectives import passes
from t5x_like.objectives.conditional_spans import NAME, ConditionalSpanExtraction
from t5x_like.objectives.heads.question_heads import ElectraQuestion

LENGTH, EMBED = 6, 5
CONFIG = BertConfig(vocab_size=8, embed_dim=EMBED, mlp_dim=8, num_heads=1, head_dim=EMBED, num_layers=1)
HIDDEN = np.random.default_rng(0).normal(size=(4, LENGTH, EMBED)).astype(np.float32)
# A span, no answer, an unknown span, padding.
BATCH = {
    "encoder_segment_ids": np.array([[1] * 6, [1] * 5 + [0], [1] * 6, [0] * 6], np.int32),
    "token_types": np.array([[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 0], [0, 1, 1, 1, 1, 1], [0] * 6], np.int32),
    "span": np.array([[2, 4], [0, 0], [-1, -1], [0, 0]], np.int32),
}
# Positions of answers, with the first one, which stands for no answer.
ALLOWED = [[0, 2, 3, 4, 5], [0, 3, 4], [0, 1, 2, 3, 4, 5]]


def make(**settings):
    return ConditionalSpanExtraction(head=ElectraQuestion(hidden_dim=7), **settings)


@pytest.fixture(scope="module")
def params():
    head = ElectraQuestion(hidden_dim=7).make(CONFIG, key=jax.random.key(0))
    return {"objective": {NAME: jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), head)}}


class Reference:
    """The head in numpy, for one row."""

    def __init__(self, params, row):
        leaves = parameters.named_leaves(params["objective"][NAME])
        self.leaves = {name: np.asarray(leaf, np.float64) for name, leaf in leaves.items()}
        self.hidden, self.allowed = HIDDEN[row].astype(np.float64), ALLOWED[row]

    def project(self, name, x):
        return x @ self.leaves[f"{name}/kernel"] + self.leaves[f"{name}/bias"]

    def distribution(self, scores):
        """Returns log-probabilities of the allowed positions, -inf elsewhere."""
        logits = np.full(LENGTH, -np.inf)
        logits[self.allowed] = scores[self.allowed]
        return logits - np.log(np.exp(logits).sum())

    def pair(self, name, first, second):
        x = self.project(f"{name}/dense", np.concatenate([first, second]))
        return self.project(f"{name}/score", x * 0.5 * (1 + erf(x / np.sqrt(2))))[0]

    def start(self):
        return self.distribution(self.project("start", self.hidden)[:, 0])

    def end(self, start):
        return self.distribution(np.array([self.pair("end", self.hidden[start], each) for each in self.hidden]))

    def no_answer(self):
        return self.pair("no_answer", self.hidden[0], np.exp(self.start()) @ self.hidden)


def test_loss_of_the_end_depends_on_the_true_start(params):
    objective = make()
    terms = read_terms(objective, params, Outputs(hidden=HIDDEN), BATCH)
    rows = [Reference(params, row) for row in range(3)]
    starts, ends = -rows[0].start()[2] - rows[1].start()[0], -rows[0].end(2)[4] - rows[1].end(0)[0]
    assert float(terms.sums["span_start"]) == pytest.approx(starts, rel=1e-5)
    assert float(terms.sums["span_end"]) == pytest.approx(ends, rel=1e-5)
    impossible = np.log1p(np.exp(rows[0].no_answer())) + np.log1p(np.exp(-rows[1].no_answer()))
    assert float(terms.sums["no_answer"]) == pytest.approx(impossible, rel=1e-5)
    weights = passes.total_weights(objective, BATCH)
    assert {name: float(weight) for name, weight in weights.items()} == dict.fromkeys(objective.coefficients, 2)
    assert objective.coefficients == {"span_start": 0.5, "span_end": 0.5, "no_answer": 0.5}
    correct = sum(
        row.start().argmax() == start and row.end(start).argmax() == end
        for row, (start, end) in zip(rows, BATCH["span"][:2], strict=False)
    )
    assert [float(x) for x in terms.metrics["accuracy"]] == [correct, 2]
    assert [float(x) for x in terms.metrics["loss"]] == pytest.approx([starts + ends, 4], rel=1e-5)


@pytest.mark.parametrize("labeled", [True, False])
def test_beam_over_all_positions_equals_all_pairs(params, labeled):
    objective = make(beam_size=20, no_answer_threshold=-2.75, max_answer_length=3)
    batch = BATCH if labeled else {name: rows for name, rows in BATCH.items() if name != "span"}
    predicted = objective.predict(objective.read(params, Outputs(hidden=HIDDEN), batch))
    for row in range(3):
        reference = Reference(params, row)
        scores = {
            (i, j): reference.start()[i] + reference.end(i)[j] for i, j in itertools.product(ALLOWED[row], repeat=2)
        }
        found = {
            tuple(span): score
            for span, score in zip(predicted["beam_spans"][row].tolist(), predicted["beam_scores"][row], strict=True)
            if score > -500
        }
        assert found == pytest.approx(scores, rel=1e-5)
        spans = [(i, j) for i, j in scores if 0 < i <= j < i + 3]
        assert predicted["predictions"][row].tolist() == list(max(spans, key=scores.get))
        difference = float(predicted["null_score_difference"][row])
        assert difference == pytest.approx(reference.no_answer() + 2.75, rel=1e-5)


def test_beam_keeps_the_best_starts_and_the_best_ends_of_each(params):
    predicted = make(beam_size=2).predict(make().read(params, Outputs(hidden=HIDDEN), BATCH))
    reference = Reference(params, 0)
    starts = np.argsort(-reference.start())[:2]
    expected = {(int(i), int(j)) for i in starts for j in np.argsort(-reference.end(i))[:2]}
    assert {tuple(span) for span in predicted["beam_spans"][0].tolist()} == expected


def test_row_without_a_second_text_has_no_span(params):
    batch = BATCH | {"token_types": np.zeros_like(BATCH["token_types"])}
    predicted = make().predict(make().read(params, Outputs(hidden=HIDDEN), batch))
    assert predicted["predictions"][:3].tolist() == [[0, 0]] * 3
    # An answer there is visible in the loss, as in the released code.
    assert 900 < read_terms(make(), params, Outputs(hidden=HIDDEN), batch).sums["span_start"] < 1100


def test_invalid_settings_raise():
    for settings, message in (
        ({"beam_size": 0}, "ConditionalSpanExtraction.beam_size=0: not positive"),
        ({"max_answer_length": 0}, "ConditionalSpanExtraction.max_answer_length=0: not positive"),
        ({"no_answer_coefficient": -1.0}, "no_answer_coefficient=-1.0 is negative"),
    ):
        with pytest.raises(UserError, match=message):
            make(**settings)
    with pytest.raises(UserError, match="hidden_dim=0 of ElectraQuestion is not positive"):
        ElectraQuestion(hidden_dim=0)
