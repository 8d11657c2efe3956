"""The examples of records: rows for the model, and the fields of the output from its results."""

import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from t5x_like.axis_rules import NO_AXES, Axes
from t5x_like.data import buckets
from t5x_like.data.batches import from_arrays
from t5x_like.data.features import FeatureSpec
from t5x_like.data.records import Record
from t5x_like.decoding.score import Scored
from t5x_like.errors import UserError
from t5x_like.inference.codec import Codec, check_ids
from t5x_like.inference.head_outputs import FIRST_PIECES, Row, grouped, head_fields
from t5x_like.inference.layout import Layout
from t5x_like.objectives.base import Objective

if TYPE_CHECKING:
    from t5x_like.data.seqio_feed.task_rows import TaskRows

Fields = Mapping[str, Any]
# The fields of a record of which a task makes no example.
NO_PREDICTION: Fields = types.MappingProxyType({"prediction": None})
UNKNOWN = -1
_TARGETS = "targets"
# Rows that the preprocessors of a task make at a time.
_ROWS_PER_READ = 32


class Example(NamedTuple):
    """An example.

    Attributes:
      record: Index of its record.
      length: Number of tokens of its row.
      content: Token ids by field, or model features of its row.
      source: What the output needs of it.
    """

    record: int
    length: int
    content: Mapping[str, Any]
    source: Mapping[str, Any] = types.MappingProxyType({})


class Examples(Protocol):
    """The examples of records.

    Attributes:
      longest: Length of the longest possible row.
      axes: Model feature -> logical axes, for features whose axes do not follow from their number of dimensions.
    """

    longest: int
    axes: Axes

    def read(self, start: int, stop: int) -> list[Example]:
        """Returns the examples of the records from `start` up to `stop`. A record has any number of them."""

    def batch(self, examples: Sequence[Example], rows: int, length: int) -> dict[str, np.ndarray]:
        """Returns a batch, `[rows, …]`.

        Args:
          examples: At most `rows`. Further rows repeat the last one, so that they take no longer than it.
          rows: Number of rows.
          length: Length of the rows, at least the length of each example.
        """

    def fields(self, results: Sequence[tuple[Example, Any]]) -> dict[int, Fields]:
        """Returns the output fields of each record.

        Args:
          results: The examples of whole records, each with the result of the model for it, on the host.
        """

    def tokens(self, results: Sequence[tuple[Example, Any]]) -> int:
        """Returns the number of tokens that results have cost: generated, scored or read."""

    def report(self) -> None:
        """Logs what the reader of the output should know, such as the number of truncated sequences."""


class TextExamples:
    """Inputs and targets in token ids, for a model that predicts text.

    Args:
      path: Path of the records, for messages.
      records: The records.
      codec: Encodes text, and decodes results.
      layout: The layout of inputs and targets in a row.
      lengths: Maximum lengths of `inputs` and `targets`.
      mode: `predict` or `score`.
      rows: The records in a task, whose preprocessors make the examples; None if records have `inputs` and `targets`.
    """

    def __init__(
        self,
        path: str,
        records: Sequence[Record],
        codec: Codec,
        layout: Layout,
        lengths: Mapping[str, int],
        mode: str,
        rows: "TaskRows | None" = None,
    ):
        self._path, self._records = path, records
        self._codec, self._layout, self._lengths, self._mode = codec, layout, lengths, mode
        self._rows, self._scored = rows, mode == "score"
        self.longest, self.axes = layout.longest(lengths, scored=self._scored), NO_AXES

    def check(self, vocab_size: int) -> None:
        """Checks the records; see `Codec.check`. Those of a task are checked when its preprocessors read them."""
        if self._rows is None:
            self._codec.check(self._path, self._records, vocab_size, needs_targets=self._scored)

    def read(self, start: int, stop: int) -> list[Example]:
        """Returns the examples of records; see `Examples`."""
        if self._rows is None:
            found = ((index, self._records[index].values) for index in range(start, stop))
        else:
            found = (
                (index, {name: example[name].tolist() for name in ("inputs", "targets") if name in example})
                for index, example in self._rows.examples(start, stop)
            )
            if (bos := self._layout.encoder_bos) is not None:  # takes the place of EOS, as in training
                end = -1 if self._rows.inputs_have_eos else None
                found = ((index, {**ids, "inputs": [bos, *ids["inputs"][:end]]}) for index, ids in found)
        encoded = (
            (index, self._codec.encode(f"{self._path}:{self._records[index].line}", fields, needs_targets=self._scored))
            for index, fields in found
        )
        return [Example(index, self._layout.row_length(ids), ids) for index, ids in encoded]

    def batch(self, examples: Sequence[Example], rows: int, length: int) -> dict[str, np.ndarray]:
        """Returns a batch; see `Examples`."""
        names = ("inputs", "targets") if self._scored else ("inputs",)
        given = [example.content for example in examples] or [{name: [0] for name in names}]
        return self._layout.batch([*given, *[given[-1]] * (rows - len(given))], rows, self._lengths, length)

    def fields(self, results: Sequence[tuple[Example, Any]]) -> dict[int, Fields]:
        """Returns the fields that `Codec.decode` describes, of each record; see `Examples`."""
        if self._scored:
            results = [(example, self._scores(example, result)) for example, result in results]
        return grouped((example.record, self._codec.decode(self._mode, result)) for example, result in results)

    def _scores(self, example: Example, result: Scored) -> Scored:
        """Restricts the `positions` of a result to the targets."""
        positions = result.positions
        return (
            result if positions is None else result.replace(positions=positions[self._layout.scored(example.content)])
        )

    def tokens(self, results: Sequence[tuple[Example, Any]]) -> int:
        """Returns the number of generated or scored tokens; see `Examples`."""
        if self._scored:
            return sum(len(example.content[_TARGETS]) for example, _ in results)
        return sum(int(result.lengths.sum()) for _, result in results)

    def report(self) -> None:
        """Logs the number of truncated sequences; see `Examples`."""
        self._codec.report()


class _HeadExamples:
    """What the examples of an objective that predicts by a head have in common."""

    def __init__(self, longest: int, axes: Axes):
        self.longest, self.axes = longest, axes

    def _empty(self) -> Mapping[str, np.ndarray]:
        """Returns the features of a row of padding."""
        raise NotImplementedError

    def _example(self, record: int, features: Mapping[str, np.ndarray], source: Mapping[str, Any]) -> Example:
        length = buckets.row_length(features)
        # Without the positions of words, each token of the row has a tag.
        return Example(record, length, features, {FIRST_PIECES: range(length), **source})

    def batch(self, examples: Sequence[Example], rows: int, length: int) -> dict[str, np.ndarray]:
        """Returns a batch; see `Examples`."""
        given = [example.content for example in examples] or [self._empty()]
        given = [*given, *[given[-1]] * (rows - len(given))]
        return buckets.trim({name: np.stack([row[name] for row in given]) for name in given[0]}, length, self.axes)

    def tokens(self, results: Sequence[tuple[Example, Any]]) -> int:
        """Returns the number of tokens of the inputs; see `Examples`."""
        return sum(example.length for example, _ in results)

    def report(self) -> None:
        """Logs nothing; see `Examples`."""


class HeadExamples(_HeadExamples):
    """Examples that a task makes of records, for an objective that predicts by a head.

    Args:
      rows: The records in the task.
      spec: Features of the objective.
      shapes: Model feature -> shape of a batch.
    """

    def __init__(self, rows: "TaskRows", spec: FeatureSpec, shapes: Mapping[str, tuple[int, ...]]):
        self._rows, self._spec, self._shapes = rows, spec, shapes
        super().__init__(buckets.full_length(self._empty()), spec.axes)

    def _empty(self) -> Mapping[str, np.ndarray]:
        return {name: np.zeros(shape[1:], self._spec.dtypes[name]) for name, shape in self._shapes.items()}

    def read(self, start: int, stop: int) -> list[Example]:
        """Returns the examples of records; see `Examples`."""
        return [
            self._example(record, {name: array[row] for name, array in batch.features.items()}, source)
            for batch in self._rows.batches(self._spec, start, stop, _ROWS_PER_READ)
            for row, (record, source) in enumerate(zip(batch.records, batch.examples, strict=True))
        ]

    def fields(self, results: Sequence[tuple[Example, Any]]) -> dict[int, Fields]:
        """Returns the fields that `head_outputs` describes, of each record that has an example; see `Examples`."""
        return head_fields(_rows(results), self._rows.task.output_features[_TARGETS].vocabulary)


class IdExamples(_HeadExamples):
    """Token ids of records, for an objective that predicts by a head. Each record has one example.

    A record has the task features that hold token ids, such as `inputs`, complete with special tokens. Features aligned
    with them, such as `token_types`, are 0 if they are missing, and labels are unknown.

    Args:
      path: Path of the records, for messages.
      records: The records.
      objective: The objective. If it has `labels`, predictions have their names.
      lengths: Task feature -> maximum length in tokens. Longer records are truncated.
    """

    def __init__(self, path: str, records: Sequence[Record], objective: Objective, lengths: Mapping[str, int]):
        self._path, self._records = path, records
        self._spec, self._labels = objective.features, tuple(getattr(objective, "labels", ()))
        self._lengths = self._spec.task_lengths(lengths)
        if inner := list(self._spec.inner_sizes):
            raise UserError(
                f"{path}: {type(objective).__name__} reads {inner[0]!r}, which has several values per token. Give "
                "records with the columns of a task, and the task as MIXTURE_OR_TASK_NAME."
            )
        super().__init__(buckets.full_length(self._empty()), self._spec.axes)

    def check(self, vocab_size: int) -> None:
        """Checks that each record has the features, and that token ids are in the vocabulary.

        Raises:
          UserError: A feature is missing, is not a list of token ids, or has an id out of range.
        """
        names = [name for name in self._spec.task_features if self._spec.is_token_ids(name)]
        for record in self._records:
            row = {name: self._ids(record, name) for name in self._spec.task_features}
            check_ids(f"{self._path}:{record.line}", {name: row[name] for name in names}, vocab_size)

    def _ids(self, record: Record, name: str) -> list[int]:
        value, lead = record.values.get(name), self._spec.lead(name)
        if value is None and not self._spec.is_token_ids(name):
            labels = name in self._spec.fixed_lengths or name == _TARGETS
            size = self._lengths[name] if name in self._spec.fixed_lengths else len(record.values.get(lead) or ())
            value = [UNKNOWN if labels else 0] * size
        if not (isinstance(value, list) and all(self._is_valid(name, item) for item in value)):
            kind = "token ids" if self._spec.is_token_ids(name) else "numbers"
            raise UserError(
                f"{self._path}:{record.line}: {name!r} must be a list of {kind}, not {value!r:.80}. Correct it, or "
                "give MIXTURE_OR_TASK_NAME, the task of records with text."
            )
        return value[: self._lengths[name]]

    def _is_valid(self, name: str, item: Any) -> bool:
        """Returns whether an item is a token id, or a number if the feature does not hold token ids."""
        return isinstance(item, int) and item >= 0 if self._spec.is_token_ids(name) else isinstance(item, int | float)

    def _features(self, row: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
        """Returns the model features of a record, padded to the maximum lengths."""
        arrays = {name: np.zeros((1, length), self._spec.task_dtype(name)) for name, length in self._lengths.items()}
        for name, values in row.items():
            arrays[name][0, : len(values)] = values
        counts = {name: [len(values)] for name, values in row.items() if self._spec.is_token_ids(name)}
        return {name: array[0] for name, array in from_arrays(self._spec, arrays, counts=counts).items()}

    def _empty(self) -> Mapping[str, np.ndarray]:
        return self._features({name: [] for name in self._spec.task_features})

    def read(self, start: int, stop: int) -> list[Example]:
        """Returns the examples of records; see `Examples`."""
        rows = [
            {name: self._ids(record, name) for name in self._spec.task_features} for record in self._records[start:stop]
        ]
        return [self._example(start + number, self._features(row), {}) for number, row in enumerate(rows)]

    def fields(self, results: Sequence[tuple[Example, Any]]) -> dict[int, Fields]:
        """Returns the fields that `head_outputs` describes, with positions for spans; see `Examples`."""
        return head_fields(_rows(results), types.SimpleNamespace(names=self._labels, decode=lambda ids: ids))


def _rows(results: Sequence[tuple[Example, Any]]) -> list[Row]:
    return [(example.record, example.source, outputs) for example, outputs in results]
