"""Metrics of the answers that `t5x_like.decoding.spans` finds for the windows of span extraction."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data_tasks.metrics.question_answering import squad, squad_v2_with_scores
from t5x_like.decoding.spans import Answer, Window, answers_of


def window_or_text(values: Sequence[int], *, example: Mapping[str, Any], is_target: bool) -> Window | str:
    """Returns the window of an example as its target, and the text of a predicted span. SeqIO's `postprocess_fn`.

    Args:
      values: first and last position of a span.
      example: the features of `span_extraction.span_windows`.
      is_target: whether the span is the target.
    """
    window = Window.of(example, example["id"].decode("utf-8"))
    return window if is_target else window.text(int(values[0]), int(values[1]))


def squad_v1_spans(
    targets: Sequence[Window], predictions: Sequence[Sequence[int]], aux_values: Mapping[str, Any]
) -> dict[str, float]:
    """Computes `em` and `f1` of SQuAD 1.1 from the outputs for all windows.

    Args:
      targets: windows.
      predictions: the best first and last position in each window. They are not read, because the windows of a question
        compete.
      aux_values: what `answers_of` reads, such as `start_logits` and `end_logits`, `[windows, length]`.

    Returns:
      The metrics of `question_answering.squad`.
    """
    del predictions
    answers = answers_of(targets, aux_values)
    return squad(_gold(targets, answers), [answer.text for answer in answers.values()])


def squad_v2_spans(
    targets: Sequence[Window], predictions: Sequence[Sequence[int]], aux_values: Mapping[str, Any]
) -> dict[str, float]:
    """Computes the metrics of SQuAD 2.0 from the outputs for all windows.

    A question has no answer if the score of no answer is higher than the score of the best span. `best_exact` and
    `best_f1` are the results with the best threshold of the difference.

    Args:
      targets: windows.
      predictions: see `squad_v1_spans`.
      aux_values: what `answers_of` reads, such as `start_logits` and `end_logits`, `[windows, length]`.

    Returns:
      The metrics of `question_answering.squad_v2_with_scores`.
    """
    del predictions
    answers = answers_of(targets, aux_values)
    # Without any span, no answer is certain. A finite number keeps the thresholds finite.
    differences = [min(answer.null_score - answer.score, np.finfo(np.float32).max) for answer in answers.values()]
    return squad_v2_with_scores(_gold(targets, answers), [answer.text for answer in answers.values()], differences)


def _gold(targets: Sequence[Window], answers: Mapping[str, Answer]) -> list[tuple[str, ...]]:
    known = {window.question: window.answers for window in targets}
    return [known[question] for question in answers]
