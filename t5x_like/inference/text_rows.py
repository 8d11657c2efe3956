"""Rows of token ids as the features that a model reads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from t5x_like.axis_rules import INPUT_TOKENS_SUFFIX, NO_AXES
from t5x_like.inference.examples import Example
from t5x_like.models.base import ModelConfig


class IdRows:
    """Rows of token ids, as `examples.Examples` without fields of an output.

    Args:
      config: Configuration of the model.
      rows: Token ids of each row, with special tokens.
      last_type: Token type of the last token of a row.
      longest: Length of the longest row in tokens.
    """

    def __init__(self, config: ModelConfig, rows: Sequence[Sequence[int]], last_type: int, longest: int):
        self._rows, self._last_type, self._reads = rows, last_type, set(config.reads)
        self._stack = next(iter(config.stacks))
        self.longest, self.axes = longest, NO_AXES

    def read(self, start: int, stop: int) -> list[Example]:
        """Returns an example per row."""
        return [Example(index, self.length(index), {}) for index in range(start, stop)]

    def length(self, index: int) -> int:
        """Returns the length of a row."""
        return len(self._rows[index])

    def batch(self, examples: Sequence[Example], rows: int, length: int) -> dict[str, np.ndarray]:
        """Returns a batch, `[rows, length]`; see `Examples`. The last example is repeated."""
        found = self.features(chosen(examples, rows), length)
        return {name: array for name, array in found.items() if name in self._reads or name.endswith("_segment_ids")}

    def features(self, indices: Sequence[int], length: int) -> dict[str, np.ndarray]:
        """Returns the features of rows, also those that the model does not read.

        Args:
          indices: The rows.
          length: Length in tokens to which rows are padded.

        Returns:
          Feature -> `[rows, length]`.
        """
        rows = [self._rows[index] for index in indices]
        types = np.zeros((len(rows), length), np.int32)
        types[np.arange(len(rows)), [len(ids) - 1 for ids in rows]] = self._last_type
        return stack_features(self._stack, *padded(rows, length)) | {"token_types": types}

    def tokens(self, results: Sequence[tuple[Example, Any]]) -> int:
        """Returns the number of tokens that the model has read."""
        return sum(example.length for example, _ in results)


def chosen(examples: Sequence[Example], rows: int) -> list[int]:
    """Returns the record of each row of a batch, filled up with the last record; record 0 without examples."""
    found = [example.record for example in examples] or [0]
    return found + found[-1:] * (rows - len(found))


def stack_features(
    stack: str, tokens: Int32[np.ndarray, "rows length"], segments: Int32[np.ndarray, "rows length"]
) -> dict[str, np.ndarray]:
    """Returns what a stack of layers reads of tokens, each row a segment."""
    positions = np.arange(tokens.shape[1], dtype=np.int32) * segments
    return {f"{stack}{INPUT_TOKENS_SUFFIX}": tokens, f"{stack}_segment_ids": segments, f"{stack}_positions": positions}


def padded(rows: Sequence[Sequence[int]], length: int) -> tuple[Int32[np.ndarray, "rows length"], ...]:
    """Returns rows as an array with zeros at their ends, and 1 where they have values."""
    values, mask = np.zeros((2, len(rows), length), np.int32)
    for row, ids in enumerate(rows):
        values[row, : len(ids)], mask[row, : len(ids)] = ids, 1
    return values, mask
