"""Postprocessors: from decoded predictions and targets to the values that metrics compare.

SeqIO calls them as `postprocess(value, example=…, is_target=…)`. A value is text if the model generates, or a list of
numbers if a head predicts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.vocabularies.labels import UNKNOWN


def label_index(values: Sequence[int], **_) -> int:
    """Returns the label index of a classification head."""
    return int(values[0])


def score(values: Sequence[float], **_) -> float:
    """Returns the score of a regression head."""
    return float(values[0])


def scores(values: Sequence[float], **_) -> list[float]:
    """Returns the scores of a regression head with several outputs."""
    return [float(value) for value in values]


def string_label_to_class_id(text: str, label_classes: Sequence[str], default: int = UNKNOWN, **_) -> int:
    """Returns the index of a label word, or `default` if the text is not a label word, as T5 does."""
    return label_classes.index(text) if text in label_classes else default


def string_to_float(text: str, default: float = -1.0, **_) -> float:
    """Returns the number that a text shows, or `default` if it shows none, as T5 does."""
    try:
        return float(text)
    except ValueError:
        return default


def grouped(values: Any, group: Any, is_target: bool) -> dict[str, Any]:
    """Returns a value, and for a target also the group that it is evaluated in, as `metrics.grouped` reads them."""
    return {"value": values, "group": group} if is_target else {"value": values}


def answers_or_text(text: str, *, example: Mapping[str, Any], is_target: bool) -> Sequence[str] | str:
    """Returns all `answers` of an example as its target, and a predicted text as it is."""
    return [answer.decode("utf-8") for answer in example["answers"]] if is_target else text
