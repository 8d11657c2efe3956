"""Answers from the start and end logits of span extraction (Devlin et al. 2019, sections 4.2 and 4.3).

A question has one or several windows of its context. The best span of all windows is its answer. The text of the answer
is read from the original context.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

# Number of start and of end positions of a window that are combined (BERT's run_squad.py, n_best_size).
N_BEST = 20
# Maximum number of tokens of an answer (BERT's run_squad.py, max_answer_length).
MAX_ANSWER_LENGTH = 30
# Position whose logits score the absence of an answer: [CLS] (Devlin et al. 2019, section 4.3).
NULL_POSITION = 0
# Predictions of `ConditionalSpanExtraction`.
BEAM_SPANS, BEAM_SCORES, NULL_SCORE_DIFFERENCE = "beam_spans", "beam_scores", "null_score_difference"


@dataclasses.dataclass(frozen=True)
class Window:
    """A window of a question's context, the target of one example.

    Attributes:
      question: The id of the question.
      context: The whole context.
      answers: The texts of the answers; none if the question is unanswerable.
      starts: Index in the context of the first character of each position of `inputs`, -1 outside of the context.
      ends: Index after its last character.
      max_context: Whether no other window of the question has more context around this position.
    """

    question: str
    context: str
    answers: tuple[str, ...]
    starts: Int[np.ndarray, " length"]
    ends: Int[np.ndarray, " length"]
    max_context: Bool[np.ndarray, " length"]

    @classmethod
    def of(cls, example: Mapping[str, Any], question: str) -> "Window":
        """Returns the window of an example.

        Args:
          example: `context` and `answers` in UTF-8, and per position `starts`, `ends` and `max_context`.
          question: The id of the question.
        """
        return cls(
            question=question,
            context=example["context"].decode("utf-8"),
            answers=tuple(answer.decode("utf-8") for answer in example["answers"]),
            starts=np.asarray(example["starts"]),
            ends=np.asarray(example["ends"]),
            max_context=np.asarray(example["max_context"]),
        )

    def text(self, first: int, last: int) -> str:
        """Returns the text between two positions, empty unless both are in the context and in this order."""
        if not 0 <= first <= last < len(self.starts) or min(self.starts[first], self.starts[last]) < 0:
            return ""
        return self.context[self.starts[first] : self.ends[last]].strip()


class Answer(NamedTuple):
    """The predicted answer of a question.

    Attributes:
      text: The text of the best span, empty if there is none.
      score: Its start logit + its end logit, or its log-probability.
      null_score: The score of no answer, the lowest one over the windows. A higher score than `score` means that the
        question has no answer.
    """

    text: str
    score: float
    null_score: float


def answers_of(
    windows: Sequence[Window],
    outputs: Mapping[str, Sequence[np.ndarray] | np.ndarray],
    *,
    n_best: int = N_BEST,
    max_answer_length: int = MAX_ANSWER_LENGTH,
) -> dict[str, Answer]:
    """Returns the best answer of each question.

    A span is allowed if it begins at a position with the most context of all windows, ends in the context, and has at
    most `max_answer_length` tokens.

    Args:
      windows: The windows of the questions, in any order.
      outputs: What `SpanExtraction` or `ConditionalSpanExtraction` predicts for each window: `start_logits` and
        `end_logits`, as long as the longest window or longer, or `beam_spans`, `beam_scores` and
        `null_score_difference`.
      n_best: Number of start and of end positions of a window that are combined, if they have logits.
      max_answer_length: Maximum number of tokens.

    Returns:
      Question id -> answer, in the order of the first window of each question.
    """
    if BEAM_SCORES in outputs:
        return _answers_of_beams(windows, outputs, max_answer_length)
    found: dict[str, Answer] = {}
    for window, starts, ends in zip(windows, outputs["start_logits"], outputs["end_logits"], strict=True):
        spans, scores = _combined(np.asarray(starts), np.asarray(ends), len(window.starts), n_best)
        text, score = _best_span(window, spans, scores, max_answer_length)
        null_score = float(starts[NULL_POSITION]) + float(ends[NULL_POSITION])
        other = found.get(window.question, Answer("", -np.inf, np.inf))
        if score <= other.score:
            text, score = other.text, other.score
        found[window.question] = Answer(text, score, min(null_score, other.null_score))
    return found


def _answers_of_beams(
    windows: Sequence[Window], outputs: Mapping[str, Any], max_answer_length: int
) -> dict[str, Answer]:
    """Returns the best answer of each question from the spans of beams."""
    best: dict[str, tuple[str, float]] = {}
    differences: dict[str, float] = {}
    names = (BEAM_SPANS, BEAM_SCORES, NULL_SCORE_DIFFERENCE)
    for window, spans, scores, difference in zip(windows, *(outputs[name] for name in names), strict=True):
        found = _best_span(window, np.asarray(spans), np.asarray(scores), max_answer_length)
        other = best.get(window.question, ("", -np.inf))
        best[window.question] = found if found[1] > other[1] else other
        differences[window.question] = min(float(difference), differences.get(window.question, np.inf))
    # The difference alone says whether there is an answer, so it is added to the score of any span.
    return {
        question: Answer(text, score, differences[question] + (score if np.isfinite(score) else 0.0))
        for question, (text, score) in best.items()
    }


def _combined(
    start_logits: Float[np.ndarray, " length"], end_logits: Float[np.ndarray, " length"], length: int, n_best: int
) -> tuple[Int[np.ndarray, "spans 2"], Float[np.ndarray, " spans"]]:
    """Returns the spans of the best starts and the best ends, and their scores."""
    first = np.argsort(-start_logits[:length], kind="stable")[:n_best]
    last = np.argsort(-end_logits[:length], kind="stable")[:n_best]
    spans = np.stack(np.broadcast_arrays(first[:, np.newaxis], last), axis=-1).reshape(-1, 2)
    return spans, (start_logits[first][:, np.newaxis] + end_logits[last]).reshape(-1)


def _best_span(
    window: Window,
    spans: Int[np.ndarray, "spans 2"],
    scores: Float[np.ndarray, " spans"],
    max_answer_length: int,
) -> tuple[str, float]:
    """Returns the text and the score of the best span of a window; an empty text and -inf if no span is allowed."""
    first, last = spans[:, 0], spans[:, 1]
    inside = (first <= last) & (last < len(window.starts)) & (last - first < max_answer_length)
    in_context = window.starts >= 0
    # Positions after the window are replaced, so that they can be looked up.
    at_first, at_last = (np.where(inside, positions, 0) for positions in (first, last))
    allowed = inside & (in_context & window.max_context)[at_first] & in_context[at_last]
    if not allowed.any():
        return "", -np.inf
    best = int(np.argmax(np.where(allowed, scores, -np.inf)))
    return window.text(int(first[best]), int(last[best])), float(scores[best])
