"""Exact match and F1 of answers: examples computed by hand, and the script of SQuAD 2.0 as transformers has it."""

import random
from types import SimpleNamespace

import pytest

from data_tasks.metrics.question_answering import (
    normalize_squad,
    normalize_trivia_qa,
    squad,
    squad_v2,
    squad_v2_with_scores,
    trivia_qa,
)


def test_normalization_removes_case_articles_punctuation_and_spaces():
    assert normalize_squad("  The  U.S.'s an-archy, a\tTheatre ") == "uss anarchy theatre"
    assert normalize_trivia_qa("The U.S.’s an-archy_") == "u s s archy"


def test_squad_takes_the_best_answer_of_each_question():
    answers = [["the New York City", "NYC"], ["in 1066", "1066"], ["x"]]
    metrics = squad(answers, ["York City.", "1066", ""])
    # York City shares 2 words with an answer of 3: precision 1, recall 2/3, F1 0.8.
    assert metrics == pytest.approx({"em": 100 / 3, "f1": 100 * (0.8 + 1 + 0) / 3})


def test_trivia_qa_replaces_punctuation_by_spaces():
    assert trivia_qa([["Jean Luc"]], ["jean-luc"]) == {"em": 100, "f1": 100}
    assert squad([["Jean Luc"]], ["jean-luc"]) == {"em": 0, "f1": 0}


def test_squad_v2_counts_the_empty_answer():
    # "The" is nothing but an article, so the empty answer is right. Its question still has an answer.
    metrics = squad_v2([["a b c"], [], [], ["The"]], ["b c d", "", "x", ""])
    # b and c of "b c" and "b c d": recall 1, precision 2/3, F1 0.8.
    expected = {"exact": 50, "f1": 70, "HasAns_exact": 50, "HasAns_f1": 90, "NoAns_exact": 50, "NoAns_f1": 50}
    assert metrics == pytest.approx(expected)


TARGETS = [["Paris"], ["New York City"], [], ["Rollo"], []]
PREDICTIONS = ["Paris", "York", "x", "Rollo", "y"]
SCORES = [-5.0, -1.0, 0.5, 2.0, 3.0]


def test_squad_v2_finds_the_best_thresholds():
    """In ascending order of the scores, from 2 unanswerable questions.

    exact: 3 (Paris), 3, 2 (x), 3 (Rollo), 2. The best is 3, first reached at the score -5.
    f1: 3, 3.5 (York has F1 0.5), 2.5, 3.5, 2.5. The best is 3.5, first reached at -1.
    Above the threshold 0 are x, Rollo and y: exact 1 + 0 + 1 + 0 + 1.
    """
    metrics = squad_v2_with_scores(TARGETS, PREDICTIONS, SCORES)
    assert metrics == pytest.approx(
        {
            **{"exact": 60, "f1": 70, "HasAns_exact": 100 / 3, "HasAns_f1": 50, "NoAns_exact": 100, "NoAns_f1": 100},
            **{"best_exact": 60, "best_exact_thresh": -5, "best_f1": 70, "best_f1_thresh": -1},
        }
    )


def test_best_threshold_is_zero_if_no_question_should_be_answered():
    metrics = squad_v2_with_scores([[], ["x"]], ["wrong", "y"], [-3.0, -2.0])
    assert (metrics["best_exact"], metrics["best_exact_thresh"]) == (50, 0)


@pytest.mark.parity
def test_squad_v2_equals_the_official_script():
    from transformers.data.metrics.squad_metrics import squad_evaluate as evaluate

    draw = random.Random(0)
    words = "the a red, blue green. U.S. x".split()

    def text(most):
        return " ".join(draw.choices(words, k=draw.randint(0, most)))

    targets = [[text(4) for _ in range(draw.randint(0, 3))] for _ in range(300)]
    predictions = [draw.choice([*answers, text(3)]) for answers in targets]
    scores = [draw.gauss(0, 1) + 2 * (not answers) for answers in targets]
    examples = [
        SimpleNamespace(qas_id=number, answers=[{"text": answer} for answer in answers])
        for number, answers in enumerate(targets)
    ]
    expected = evaluate(examples, dict(enumerate(predictions)), dict(enumerate(scores)), 0.0)
    metrics = squad_v2_with_scores(targets, predictions, scores)
    assert metrics == pytest.approx({name: value for name, value in expected.items() if not name.endswith("total")})
    expected = evaluate(examples, dict(enumerate(predictions)))
    metrics = squad_v2(targets, predictions)
    assert metrics == pytest.approx({name: expected[name] for name in metrics})
