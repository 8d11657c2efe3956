"""BLEU and ROUGE: examples by hand, T5's expected values, and a fixed seed."""

import json
import logging

import numpy as np
import pytest

from data_tasks.metrics.generation import bleu, rouge
from data_tasks.metrics.rouge import rouge_lsum, rouge_n, words_of


def test_equal_texts_score_100():
    texts = ["the cat sat on the mat .", "a b c d e"]
    assert bleu(texts, texts) == pytest.approx({"bleu": 100, "bleu_13a": 100})
    assert rouge(texts, texts) == pytest.approx({"rouge1": 100, "rouge2": 100, "rougeLsum": 100})


def test_bleu_by_hand(caplog):
    """Precisions 4/5, 3/4, 2/3 and 1/2 of 1 to 4 words, and no penalty for length: the fourth root of 1/5."""
    with caplog.at_level(logging.INFO):
        metrics = bleu(["a b c d f"], ["a b c d e"])
    assert metrics["bleu"] == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    signatures = [record.getMessage() for record in caplog.records]
    assert [("tok:intl" in line, "tok:13a" in line) for line in signatures] == [(True, False), (False, True)]


def test_tokenizers_of_bleu_differ():
    """`intl` separates the euro sign from the number, `13a` does not."""
    metrics = bleu(["it costs 5€ in all"], ["it costs 5 € in all"])
    assert metrics["bleu"] == pytest.approx(100)
    assert metrics["bleu_13a"] < 90


def test_bleu_with_several_references():
    assert bleu([["a b c d", "x"], ["y", "e f g h"]], ["a b c d", "e f g h"])["bleu"] == pytest.approx(100)


def test_rouge_by_hand():
    """Words: 2 of 3 and 2 of 4, F 4/7. Pairs: 1 of 2 and 1 of 3, F 2/5. Both sentences of the target are matched."""
    metrics = rouge(["a b . c d"], ["a b e"])
    assert metrics == pytest.approx({"rouge1": 400 / 7, "rouge2": 40, "rougeLsum": 400 / 7})


@pytest.mark.parametrize(
    ("target", "prediction", "hits"),
    [
        ("a b c", "c b a", 1),  # a subsequence keeps the order
        ("a b c d", "a b\nc d", 4),  # a target sentence matches several predicted ones
        ("a b\na b", "a b", 2),  # a predicted word matches once
        ("a a b", "b a a", 2),
        ("a b\nc", "a c\nb", 3),
        ("a b a", "a\nb", 2),  # of two equal words, the subsequence has the last one
        ("c b a b", "b a\nb c", 3),  # of two subsequences of equal length, that with the last target words
        ("x", "y", 0),
        ("", "y", 0),
        ("It's 2 o'clock", "it S 2\nO CLOCK", 5),  # words are letters and digits, in lower case
        ("Ünïcode", "n code", 2),
    ],
)
def test_rouge_lsum_by_hand(target, prediction, hits):
    total = len(words_of(target)) + len(words_of(prediction))
    assert rouge_lsum(target, prediction) == pytest.approx(2 * hits / total)


def test_rouge_counts_repeated_words_as_often_as_both_texts_have_them():
    assert rouge_n("a a a b", "a a c", 1) == pytest.approx(4 / 7)
    assert rouge_n("a a a b", "a a c", 2) == pytest.approx(2 / 5)
    assert rouge_n("a", "a", 2) == 0


def test_rouge_equals_the_expected_values_of_t5(test_data):
    folder = test_data / "eval" / "rouge_golden"
    target, prediction = ((folder / f"{name}_large.txt").read_text().split("\n") for name in ("target", "prediction"))
    expected = json.loads((folder / "expected_bootstrap_results.json").read_text())
    state = np.random.get_state()[1].copy()
    metrics = rouge(target, prediction)
    assert metrics == pytest.approx(expected, abs=0.1)  # another draw of 1,000 resamples
    assert rouge(target, prediction) == metrics
    # rouge-score 0.1.2 with the same seed
    exact = {"rouge1": 38.49435318028837, "rouge2": 22.112036603534662, "rougeLsum": 38.30879223490447}
    assert metrics == pytest.approx(exact, rel=1e-12)
    assert (np.random.get_state()[1] == state).all(), "NumPy's global generator was changed"
