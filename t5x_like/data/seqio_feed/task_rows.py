"""Examples that a task makes of given records instead of its own data, for predictions.

The task's preprocessors run on each record by itself, so that the examples of a record are known: a preprocessor may
make several of one, such as the windows of a long text, or none.

The columns of the records are the features of the task's source. A source with the method `parse_rows(path, records)`
parses them itself. For other sources, names and types come from the source's examples; a missing number is -1, which
stands for an unknown label, and a missing list is empty.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from t5x_like.data import prompts
from t5x_like.data.batches import pad_rows
from t5x_like.data.features import FeatureSpec
from t5x_like.data.records import Record
from t5x_like.data.seqio_feed import task_errors
from t5x_like.data.seqio_feed.converter import SpecConverter
from t5x_like.data.seqio_feed.source import SeqIOSource
from t5x_like.data.token_ids import check_ids
from t5x_like.errors import UserError

UNKNOWN = -1
_RECORD = "record"


class RowBatch(NamedTuple):
    """A batch of examples.

    Attributes:
      records: Index of the record of each example.
      examples: The features that the task's preprocessors return, of each example.
      features: Model features, `[batch, …]`; rows after the examples are zeros.
    """

    records: Sequence[int]
    examples: Sequence[Mapping[str, Any]]
    features: Mapping[str, np.ndarray]


class TaskRows:
    """The examples of records.

    Args:
      source: The task, its arguments and lengths.
      path: Path of the records, for messages.
      records: At least one record.
      text_field: The field of a record that is a line of text without a column name; None if columns have names.
      separator: See `FeatureSpec.separator`.

    Raises:
      UserError: `source` is a mixture, a column is missing, or a value is invalid.
    """

    def __init__(
        self,
        source: SeqIOSource,
        path: str,
        records: Sequence[Record],
        *,
        text_field: str | None = None,
        separator: str | None = None,
    ):
        if len(source.tasks) > 1:
            names = ", ".join(task.name for task in source.tasks)
            raise UserError(
                f"MIXTURE_OR_TASK_NAME={source.name} is a mixture. Give the task whose columns the records have, one "
                f"of {names}."
            )
        self._source, (self.task,), self._path = source, source.tasks, path
        self._separator = separator
        with task_errors.explain_errors(source):  # of reading the task's own data, whose columns are needed
            self._rows = _parsed(self.task, source, path, records, text_field)

    @property
    def inputs_have_eos(self) -> bool:
        """Whether `inputs` of the examples end in EOS."""
        return self._source.add_eos().get(prompts.INPUTS, True)

    def examples(self, start: int, stop: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields (index of the record, features of the task) for the records from `start` up to `stop`.

        Raises:
          UserError: The task's preprocessors cannot process a record.
        """
        with self._explain_errors():
            for example in self._dataset(start, stop).as_numpy_iterator():
                yield int(example.pop(_RECORD)), example

    def batches(self, spec: FeatureSpec, start: int, stop: int, size: int) -> Iterator[RowBatch]:
        """Yields the examples of the records from `start` up to `stop` in batches.

        Args:
          spec: Features of the objective.
          start: Index of the first record.
          stop: Index after the last record.
          size: Rows per batch.

        Raises:
          UserError: The task's preprocessors cannot process a record, or a token id is outside of its vocabulary.
        """
        limits = self._source.id_limits(spec)
        converter = SpecConverter(
            spec,
            pack=False,
            padding_ids=self._source.padding_ids(),
            data=self.task.name,
            inputs_eos=prompts.missing_eos(self._source, spec),
        )
        with self._explain_errors():
            converted = converter.convert(self._dataset(start, stop), self._source.task_feature_lengths)
        examples = self.examples(start, stop)
        for batch in converted.batch(size).as_numpy_iterator():
            check_ids(batch, limits, data=self.task.name, holder="its vocabulary")
            rows = len(next(iter(batch.values())))
            owners, found = zip(*(next(examples) for _ in range(rows)), strict=True)
            yield RowBatch(owners, found, {name: pad_rows(array, size - rows) for name, array in batch.items()})

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # a preprocessor may raise anything
            if (known := _user_error(error)) is not None:
                raise known from None
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"{self._path}: the preprocessors of task {self.task.name} cannot process the records ({reason:.300}). "
                "Correct the records, or give the columns that the task reads."
            ) from error

    def _dataset(self, start: int, stop: int) -> tf.data.Dataset:
        lengths = dict(self._source.task_feature_lengths)
        outside = tf.__internal__.autograph.control_status_ctx()

        # As outside of a dataset, AutoGraph converts the functions that preprocessors map, not the preprocessors.
        @tf.autograph.experimental.do_not_convert
        def examples_of(number, row):
            with outside, prompts.separated(self._separator):
                ds = tf.data.Dataset.from_tensors(row)
                ds = self.task.preprocess_precache(ds, seed=self._source.seed)
                ds = self.task.preprocess_postcache(ds, sequence_length=lengths, seed=self._source.seed)
                return ds.map(lambda example: {**example, _RECORD: number})

        return self._rows(start, stop).enumerate(start).flat_map(examples_of)


def _user_error(error: BaseException | None) -> UserError | None:
    """Returns the `UserError` that a preprocessor has raised; TensorFlow raises another error instead."""
    while error is not None and not isinstance(error, UserError):
        error = error.__cause__ or error.__context__
    return error


def _parsed(
    task: seqio.Task, source: SeqIOSource, path: str, records: Sequence[Record], text_field: str | None
) -> Callable[[int, int], tf.data.Dataset]:
    """Checks records, and returns a function of the first and the last record, exclusive, to a dataset of them."""
    if hasattr(task.source, "parse_rows"):
        if text_field is not None:
            records = _named(task, path, records, text_field, task.source.text_features)
        parsed = task.source.parse_rows(path, records)
        return lambda start, stop: parsed.skip(start).take(stop - start)
    split = source.split if source.split in task.splits else next(iter(task.splits))
    spec = task.source.get_dataset(split=split, shuffle=False).element_spec
    if not isinstance(spec, Mapping):
        if text_field is None:
            raise UserError(f"{path}: task {task.name} reads lines of text without columns. Give a .txt file.")
        texts = [record.values[text_field] for record in records]
        return lambda start, stop: tf.data.Dataset.from_tensor_slices(texts[start:stop])
    if text_field is not None:
        texts = [name for name, of in spec.items() if getattr(of, "dtype", None) == tf.string and of.shape == ()]
        records = _named(task, path, records, text_field, texts)
    columns = _columns(path, spec, [(record.line, record.values) for record in records])

    def rows(start: int, stop: int) -> tf.data.Dataset:
        # The rows before `start` are not read: skipping them one by one would take longer than the model.
        chosen = tf.nest.map_structure(lambda values: values[start:stop], columns)
        return tf.data.Dataset.range(stop - start).map(
            lambda index: tf.nest.map_structure(lambda values: values[index], chosen)
        )

    return rows


def _named(
    task: seqio.Task, path: str, records: Sequence[Record], text_field: str, texts: Sequence[str]
) -> list[Record]:
    """Returns lines of text as the only text column of a task."""
    if len(texts) != 1:
        columns = ", ".join(map(repr, texts)) or "no text"
        raise UserError(
            f"{path}: lines of text, but the columns of task {task.name} are {columns}. Give a .jsonl, .csv or .tsv "
            "file with these columns."
        )
    return [record._replace(values={texts[0]: record.values[text_field]}) for record in records]


def _columns(path: str, spec: Mapping[str, Any], rows: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Returns the values of all rows by column, nested as in `spec`: `[rows]`, or ragged `[rows, (any)]` for lists."""
    found = {}
    for name, of in spec.items():
        if isinstance(of, Mapping):
            inner = [(line, _nested(path, line, name, values.get(name) or {}, Mapping)) for line, values in rows]
            found[name] = _columns(path, of, inner)
        elif of.shape.rank == 0:
            found[name] = tf.constant([_value(path, line, name, values, of.dtype) for line, values in rows], of.dtype)
        else:
            lists = [
                [
                    _checked(path, line, name, item, of.dtype)
                    for item in _nested(path, line, name, values.get(name) or [], list)
                ]
                for line, values in rows
            ]
            flat = tf.constant([item for items in lists for item in items], of.dtype)
            found[name] = tf.RaggedTensor.from_row_lengths(flat, [len(items) for items in lists])
    return found


def _nested(path: str, line: int, name: str, value: Any, kind: type) -> Any:
    """Returns a list or an object of a JSON record. The text of a .csv or .tsv file cannot be one."""
    if not isinstance(value, kind):
        noun = "a list" if kind is list else "an object"
        raise UserError(f"{path}:{line}, column {name!r}: {value!r:.80} is not {noun}. Give {noun} in a .jsonl file.")
    return value


def _value(path: str, line: int, name: str, values: Mapping[str, Any], dtype: tf.DType) -> Any:
    if name in values:
        return _checked(path, line, name, values[name], dtype)
    if dtype == tf.string:
        raise UserError(
            f"{path}:{line}: column {name!r} not found. The row has {', '.join(map(repr, values)) or 'no columns'}. "
            "Rename a column of the file."
        )
    return UNKNOWN


def _checked(path: str, line: int, name: str, value: Any, dtype: tf.DType) -> Any:
    """Returns a value as its column's type. The values of .csv and .tsv files are text."""
    try:
        if dtype == tf.string:
            if isinstance(value, str):
                return value
            raise ValueError("text")
        return float(value) if dtype.is_floating else int(value)
    except (TypeError, ValueError) as error:
        kind = "text" if dtype == tf.string else "a number" if dtype.is_floating else "an integer"
        raise UserError(f"{path}:{line}, column {name!r}: {value!r:.80} is not {kind}. Correct the value.") from error
