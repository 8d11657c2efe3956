"""Exact match and F1 of answers, as the scripts of SQuAD 1.1, SQuAD 2.0 and TriviaQA compute them.

Sources: Rajpurkar et al. 2016 (section 6.1), Rajpurkar et al. 2018, Joshi et al. 2017.
"""

import collections
import re
import string
from collections.abc import Callable, Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_TRIVIA_QA_PUNCTUATION = string.punctuation + "‘’´`_"


def normalize_squad(answer: str) -> str:
    """Lower-cases an answer, and removes punctuation, articles and repeated whitespace."""
    return _normalize(answer, string.punctuation, "")


def normalize_trivia_qa(answer: str) -> str:
    """Normalizes an answer as `normalize_squad` does, but replace punctuation by spaces."""
    return _normalize(answer, _TRIVIA_QA_PUNCTUATION, " ")


def _normalize(answer: str, punctuation: str, replacement: str) -> str:
    answer = answer.lower().translate(dict.fromkeys(map(ord, punctuation), replacement))
    return " ".join(_ARTICLES.sub(" ", answer).split())


def f1(target: str, prediction: str) -> float:
    """Returns the F1 of the words of two normalized answers, between 0 and 1; 0 if they share none."""
    target_words, predicted_words = target.split(), prediction.split()
    shared = sum((collections.Counter(target_words) & collections.Counter(predicted_words)).values())
    return 2 * shared / (len(target_words) + len(predicted_words)) if shared else 0.0


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Computes the metrics of SQuAD 1.1: the best match among the answers of each question, averaged.

    Args:
      targets: the answers of each question.
      predictions: the predicted answer of each question.

    Returns:
      Exact match `em` and word overlap `f1`, in percent.
    """
    return _mean_of_best(targets, predictions, normalize_squad)


def trivia_qa(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Computes the metrics of TriviaQA; see `squad`, with the normalization of TriviaQA."""
    return _mean_of_best(targets, predictions, normalize_trivia_qa)


def _mean_of_best(
    targets: Sequence[Sequence[str]], predictions: Sequence[str], normalize: Callable[[str], str]
) -> dict[str, float]:
    exact, overlap = [], []
    for answers, prediction in zip(targets, predictions, strict=True):
        known, predicted = [normalize(answer) for answer in answers], normalize(prediction)
        exact.append(predicted in known)
        overlap.append(max((f1(answer, predicted) for answer in known), default=0.0))
    return {"em": 100 * float(np.mean(exact)), "f1": 100 * float(np.mean(overlap))}


def squad_v2(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Computes the metrics of SQuAD 2.0 for a model that predicts the empty answer by itself.

    Args:
      targets: the answers of each question; none if it is unanswerable.
      predictions: the predicted answer of each question; empty for no answer.

    Returns:
      `exact` and `f1` in percent, and the same for answerable (`HasAns_…`) and unanswerable questions (`NoAns_…`).
    """
    answerable = np.array([bool(answers) for answers in targets])
    exact, overlap = _squad_v2_scores(targets, predictions)
    return _summary(exact, overlap, answerable)


def squad_v2_with_scores(
    targets: Sequence[Sequence[str]],
    predictions: Sequence[str],
    no_answer_scores: Sequence[float],
    threshold: float = 0.0,
) -> dict[str, float]:
    """Computes the metrics of SQuAD 2.0 for a model that scores the absence of an answer.

    Args:
      targets: the answers of each question; none if it is unanswerable.
      predictions: the best answer of each question, whether or not it is better than none.
      no_answer_scores: the higher the score of a question, the less likely it has an answer.
      threshold: questions with a higher score are predicted to be unanswerable.

    Returns:
      The metrics of `squad_v2` at this threshold; the best `exact` and `f1` over all thresholds (`best_exact`,
      `best_f1`), and these thresholds (`best_exact_thresh`, `best_f1_thresh`).
    """
    answerable, scores = np.array([bool(answers) for answers in targets]), np.asarray(no_answer_scores)
    exact, overlap = _squad_v2_scores(targets, predictions)
    without = scores > threshold
    metrics = _summary(np.where(without, ~answerable, exact), np.where(without, ~answerable, overlap), answerable)
    empty = np.array([not prediction for prediction in predictions])
    for name, values in (("exact", exact), ("f1", overlap)):
        metrics[f"best_{name}"], metrics[f"best_{name}_thresh"] = _best_threshold(values, scores, answerable, empty)
    return metrics


def _best_threshold(
    values: np.ndarray, scores: np.ndarray, answerable: np.ndarray, empty: np.ndarray
) -> tuple[float, float]:
    """Returns the highest sum of `values` over all thresholds in percent of the questions, and that threshold.

    Questions are answered in ascending order of their scores. Below all scores, every unanswerable question is right
    and the threshold is 0. The threshold is the score of the last question that is answered.
    """
    order = np.argsort(scores, kind="stable")
    gains = np.where(answerable, values, np.where(empty, 0.0, -1.0))[order]
    totals = np.concatenate([[0.0], np.cumsum(gains)]) + np.sum(~answerable)
    best = int(np.argmax(totals))  # the first one
    return 100 * float(totals[best]) / len(values), float(scores[order[best - 1]]) if best else 0.0


def _squad_v2_scores(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the exact match and F1 of each prediction, between 0 and 1."""
    exact, overlap = [], []
    for answers, prediction in zip(targets, predictions, strict=True):
        # An answer of articles and punctuation alone does not count. Without an answer, the empty one is right.
        known = [normalized for answer in answers if (normalized := normalize_squad(answer))] or [""]
        predicted = normalize_squad(prediction)
        exact.append(float(predicted in known))
        both = [float(answer == predicted) if not (answer and predicted) else f1(answer, predicted) for answer in known]
        overlap.append(max(both))
    return np.array(exact), np.array(overlap)


def _summary(exact: np.ndarray, overlap: np.ndarray, answerable: np.ndarray) -> dict[str, float]:
    metrics = {}
    for prefix, chosen in (("", np.ones_like(answerable)), ("HasAns_", answerable), ("NoAns_", ~answerable)):
        if chosen.any():
            metrics[f"{prefix}exact"] = 100 * float(np.mean(exact[chosen]))
            metrics[f"{prefix}f1"] = 100 * float(np.mean(overlap[chosen]))
    return metrics
