"""The fields of the output for an objective that predicts by a head.

| prediction of the objective | fields |
|---|---|
| label, choice | `prediction`: the name of the label, or its index without names; `probabilities` by name, or a list |
| scores | `prediction`: a number; for several, numbers by name, or a list |
| tags | `prediction`: the tag of each word, None for words that were truncated; `probabilities`: one per tag |
| span | `prediction`: text of the context; `score` and `null_score`: the answer is missing if the second is higher |

A record with several examples, such as the windows of a long text, has the answer of the best of them if it is a span,
and otherwise a list `examples` with the fields of each one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like.decoding.spans import BEAM_SCORES, Window, answers_of

# Index of the record, features of the task's example, and outputs of the objective for it by name.
Row = tuple[int, Mapping[str, Any], Mapping[str, np.ndarray]]
# Feature of a tagging task with the position of the first piece of each word, -1 for words that were truncated.
FIRST_PIECES = "first_pieces"


def head_fields(rows: Sequence[Row], vocabulary: Any) -> dict[int, dict[str, Any]]:
    """Returns the output fields of each record.

    Args:
      rows: The examples of whole records.
      vocabulary: The vocabulary of the task's targets; names of labels are its attribute `names`.

    Returns:
      Index of the record -> fields.
    """
    if rows and {"start_logits", BEAM_SCORES} & rows[0][2].keys() and "context" in rows[0][1]:
        return _spans(rows)
    name = _namer(vocabulary)
    return grouped((record, _fields(example, outputs, name)) for record, example, outputs in rows)


def grouped(fields: Iterable[tuple[int, dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    """Returns the fields of each record: the fields of its example, or a list `examples` of the fields of several."""
    found: dict[int, list[dict[str, Any]]] = {}
    for record, one in fields:
        found.setdefault(record, []).append(one)
    return {record: each[0] if len(each) == 1 else {"examples": each} for record, each in found.items()}


def _namer(vocabulary: Any) -> Callable[[int], Any]:
    """Returns a function from an index to its name: a label, a piece of text, or the index itself."""
    names = getattr(vocabulary, "names", None)
    return (lambda index: names[index]) if names else (lambda index: vocabulary.decode([index]))


def _fields(
    example: Mapping[str, Any], outputs: Mapping[str, np.ndarray], name: Callable[[int], Any]
) -> dict[str, Any]:
    predictions, probabilities = outputs["predictions"], outputs.get("probabilities")
    if np.issubdtype(predictions.dtype, np.floating):
        scores = [float(value) for value in predictions]
        return {"prediction": scores[0] if len(scores) == 1 else _by_name(scores, name)}
    if len(predictions) > 1:
        return _tags(example, predictions, probabilities, name)
    fields = {"prediction": _plain(name(int(predictions[0])))}
    if probabilities is not None:
        fields["probabilities"] = _by_name([float(share) for share in probabilities], name)
    return fields


def _by_name(values: list[float], name: Callable[[int], Any]) -> dict[str, float] | list[float]:
    """Returns values by the names of their indices, or a list if the indices have no names."""
    names = [_plain(name(index)) for index in range(len(values))]
    return dict(zip(names, values, strict=True)) if isinstance(names[0], str) else values


def _tags(
    example: Mapping[str, Any], predictions: np.ndarray, probabilities: np.ndarray | None, name: Callable[[int], Any]
) -> dict[str, Any]:
    """Returns the tags of words, or of all positions if the task has no words."""
    positions = [int(position) for position in example.get(FIRST_PIECES, range(len(predictions)))]
    fields = {"prediction": [_plain(name(int(predictions[at]))) if at >= 0 else None for at in positions]}
    if probabilities is not None:
        fields["probabilities"] = [float(probabilities[at].max()) if at >= 0 else None for at in positions]
    return fields


def _plain(value: Any) -> Any:
    """Returns the index of a vocabulary without names, whose decoded value is a list of ids."""
    return value if isinstance(value, str) else int(np.asarray(value).reshape(-1)[0])


def _spans(rows: Sequence[Row]) -> dict[int, dict[str, Any]]:
    windows = [Window.of(example, str(record)) for record, example, _ in rows]
    outputs = {name: [each[name] for _, _, each in rows] for name in rows[0][2]}
    return {
        int(record): {"prediction": answer.text, "score": _finite(answer.score), "null_score": answer.null_score}
        for record, answer in answers_of(windows, outputs).items()
    }


def _finite(score: float) -> float | None:
    """Returns None for the score of an answer that does not exist; JSON has no infinity."""
    return score if np.isfinite(score) else None
