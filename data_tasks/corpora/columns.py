"""Columns of tables: how the values of a feature are parsed, and their dtype."""

import dataclasses
import difflib
import math
import re
from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from t5x_like.vocabularies.labels import UNKNOWN

Place = str | int
"""A column by its name in the header or by its position from 0."""


class Column(Protocol):
    """A feature that is read from one column.

    Attributes:
      dtype: the dtype of the feature.
      column: where the values are; None for the column with the name of the feature.
      default: the value of all rows of a file without this column; None if the column is required.
    """

    dtype: tf.DType
    column: Place | None
    default: Any

    def parse(self, value: Any) -> Any:
        """Returns the value of the feature.

        Args:
          value: a string, or what a JSON file holds.

        Raises:
          ValueError: the value is invalid. The message is a sentence about the value and what to do.
        """


@dataclasses.dataclass(frozen=True)
class Text:
    """Text, a scalar string."""

    column: Place | None = None
    default: bytes | None = None
    dtype = tf.string

    def parse(self, value: Any) -> bytes:
        """Returns the text in UTF-8."""
        if not isinstance(value, str):
            raise ValueError(f"{value!r:.80} is not text. Give a string")
        return value.encode("utf-8", errors="surrogatepass")  # JSON may contain a lone surrogate


@dataclasses.dataclass(frozen=True)
class Texts:
    """A list of texts, string `[any]`. Only JSON files can hold one."""

    column: Place | None = None
    default: tuple[()] | None = None
    dtype = tf.string

    def parse(self, value: Any) -> list[bytes]:
        """Returns the texts in UTF-8."""
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ValueError(f"{value!r:.80} is not a list of texts. Give a list of strings")
        return [text.encode("utf-8", errors="surrogatepass") for text in value]


@dataclasses.dataclass(frozen=True)
class Label:
    """A label, as its index in `names`, scalar int32.

    Args:
      names: the names of the labels. A file holds names, or indices from 0.
      column: see `Column`.
      default: see `Column`; `labels.UNKNOWN` for files without labels.
    """

    names: tuple[str, ...]
    column: Place | None = None
    default: int | None = None
    dtype = tf.int32

    def parse(self, value: Any) -> int:
        """Returns the index of a label; -1 in a file is an unknown one."""
        text = str(value).strip()
        if text in self.names:
            return self.names.index(text)
        if re.fullmatch(r"-1|\d{1,9}", text) and int(text) < len(self.names):
            return int(text)
        if text.isdigit():
            raise ValueError(
                f"{text!r:.80} is not the index of a label. The indices of the {len(self.names)} labels count from 0 "
                f"to {len(self.names) - 1}. Give one of them, or names: {self._shown()}"
            )
        near = difflib.get_close_matches(text, self.names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{text!r:.80} is not a label.{hint} Give one of {self._shown()}")

    def _shown(self) -> str:
        return ", ".join(map(repr, self.names[:10])) + (", …" if len(self.names) > 10 else "")


@dataclasses.dataclass(frozen=True)
class Labels:
    """A list of labels, as their indices in `names`, int32 `[any]`. Only JSON files can hold one.

    Args:
      names: see `Label`.
      column: see `Column`.
      default: see `Column`.
    """

    names: tuple[str, ...]
    column: Place | None = None
    default: tuple[()] | None = None
    dtype = tf.int32

    def parse(self, value: Any) -> list[int]:
        """Returns the indices of the labels."""
        if not isinstance(value, list):
            raise ValueError(f"{value!r:.80} is not a list of labels. Give a list")
        return [Label(self.names).parse(label) for label in value]


@dataclasses.dataclass(frozen=True)
class Number:
    """A real number, scalar float32."""

    column: Place | None = None
    default: float | None = None
    dtype = tf.float32

    def parse(self, value: Any) -> float:
        """Returns the number."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, bool) or not math.isfinite(number):
            raise ValueError(f"{value!r:.80} is not a number. Give a finite number")
        return number


@dataclasses.dataclass(frozen=True)
class Score(Number):
    """The target of a regression, scalar float32. It is not negative, because -1 is an unknown score."""

    def parse(self, value: Any) -> float:
        """Returns the score."""
        score = super().parse(value)
        if score < 0 and score != UNKNOWN:
            raise ValueError(f"{value!r:.80} is negative, like an unknown score. Add a constant to all scores")
        return score


@dataclasses.dataclass(frozen=True)
class Integer:
    """An integer, scalar int32."""

    column: Place | None = None
    default: int | None = None
    dtype = tf.int32

    def parse(self, value: Any) -> int:
        """Returns the integer."""
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?\d+", str(value).strip()):
            raise ValueError(f"{value!r:.80} is not an integer. Give an integer")
        if abs(int(value)) > tf.int32.max:
            raise ValueError(f"{value!r:.80} is too large. Give an integer of 32 bits")
        return int(value)


@dataclasses.dataclass(frozen=True)
class Integers:
    """A list of integers, int32 `[any]`. Only JSON files can hold one."""

    column: Place | None = None
    default: tuple[()] | None = None
    dtype = tf.int32

    def parse(self, value: Any) -> list[int]:
        """Returns the integers."""
        if not isinstance(value, list):
            raise ValueError(f"{value!r:.80} is not a list of integers. Give a list")
        return [Integer().parse(number) for number in value]


def unlabeled(column: Column) -> Column:
    """Returns the column of a test split, which may be missing from its file: labels are unknown, texts empty."""
    return dataclasses.replace(column, default=b"" if isinstance(column, Text) else UNKNOWN)


def to_tensor(column: Column, values: Sequence[Any]) -> tf.Tensor | tf.RaggedTensor:
    """Returns the values of all rows, `[rows]`, or ragged `[rows, (any)]` for lists."""
    if isinstance(column, Texts | Labels | Integers):
        flat = tf.constant([item for items in values for item in items], column.dtype)
        return tf.RaggedTensor.from_row_lengths(flat, [len(items) for items in values])
    return tf.constant(values, column.dtype)
