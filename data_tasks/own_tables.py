"""Tasks over a user's own tables: one call registers a task whose rows are in .csv, .tsv or .jsonl files."""

from collections.abc import Callable, Mapping, Sequence

import seqio
import tensorflow as tf

from data_tasks import classification, text_to_text
from data_tasks.columns import Column, Label, Score, Text, unlabeled
from data_tasks.metrics.classification import accuracy, f1, pearson_corrcoef, spearman_corrcoef
from data_tasks.metrics.generation import exact_match
from data_tasks.rows import RowSource
from data_tasks.table_files import ParsesRows, Table, read_table
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

UNLABELLED_SPLITS = ("test",)
"""The labels of these splits may be missing from their files, unless a task names others."""


class TableSource(ParsesRows, RowSource):
    """The rows of one file per split.

    Args:
      files: split -> path or URL.
      columns: the features to read.
      label: the feature that may be missing from rows to predict, and from the files of some splits.
      unlabelled: these splits.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        columns: Mapping[str, Column],
        label: str,
        unlabelled: Sequence[str] = UNLABELLED_SPLITS,
    ):
        self._files, self._label, self._unlabelled = dict(files), label, tuple(unlabelled)
        self._columns = dict(columns)
        super().__init__(self._read_split, tuple(files), self._describe_files)

    def _read_split(self, split: str):
        columns = self.row_columns if split in self._unlabelled else self._columns
        return read_table(self._files[split], Table.of(columns))

    def _describe_files(self) -> str:
        return "; ".join(f"{split}: {self._read_split(split).origin}" for split in self.splits)

    @property
    def text_features(self) -> tuple[str, ...]:
        """The names of the columns of the texts that the model reads."""
        texts = {name: column for name, column in self._columns.items() if name != self._label}
        return tuple(str(column.column or name) for name, column in texts.items())

    @property
    def row_columns(self) -> dict[str, Column]:
        """The features of a row; its label may be missing."""
        return {**self._columns, self._label: unlabeled(self._columns[self._label])}


def add_classification_task(
    name: str,
    files: Mapping[str, str],
    *,
    texts: Sequence[str],
    label: str,
    labels: Sequence[str] | None,
    metric_fns: Sequence[Callable] | None = None,
    unlabelled: Sequence[str] = UNLABELLED_SPLITS,
) -> seqio.Task:
    """Register a task that predicts a label or a score for one or two texts.

    Args:
      name: the task name.
      files: split -> path of a .csv, .tsv or .jsonl file. Relative paths begin in the working directory.
      texts: the columns of the one or two texts, in the order in which the model reads them.
      label: the column of the label.
      labels: the names of the labels, in the order of their indices; a file holds names or indices. None for
        regression, where the column holds scores of 0 or more.
      metric_fns: the metrics. Default: accuracy, and F1 if there are two labels; the correlations of Pearson and
        Spearman for regression.
      unlabelled: the splits whose files may lack the column of labels: `test`, and `train` for a transfer set on which
        a teacher predicts the labels.

    Returns:
      The registered task, for any vocabulary (`VOCABULARY_PATH` or `HF_PATH`).

    Raises:
      UserError: the arguments contradict each other. Files are read later.
    """
    if isinstance(texts, str) or not 1 <= len(texts) <= 2 or {label, "label"} & set(texts):
        raise UserError(
            f"task {name}: texts={texts!r} are not one or two columns without a label. Give a tuple such as "
            "('title', 'body')."
        )
    if labels is not None and (isinstance(labels, str) or len(set(labels)) != len(labels) or len(labels) < 2):
        raise UserError(f"task {name}: labels={labels!r} are not two or more different names. Give each label once.")
    if metric_fns is None:
        binary = [accuracy, f1] if labels is not None and len(labels) == 2 else [accuracy]
        metric_fns = [pearson_corrcoef, spearman_corrcoef] if labels is None else binary
    arguments = task_arguments.declare(name, **{classification.VOCABULARY_PATH: None})
    column = Score(label) if labels is None else Label(tuple(labels), label)
    columns = {**{text: Text() for text in texts}, "label": column}
    return classification.add(
        name,
        TableSource(files, columns, "label", unlabelled),
        arguments,
        texts=tuple(texts),
        labels=labels,
        metric_fns=metric_fns,
    )


def add_text_to_text_task(
    name: str,
    files: Mapping[str, str],
    *,
    inputs: str,
    targets: str,
    prefix: str = "",
    metric_fns: Sequence[Callable] = (exact_match,),
    postprocess_fn: Callable | None = None,
) -> seqio.Task:
    """Register a text-to-text task: the model reads one column and generates the other.

    Args:
      name: the task name.
      files: see `add_classification_task`. The targets of the split `test` may be missing.
      inputs: the column of the texts that the model reads.
      targets: the column of the texts that the model generates.
      prefix: a text before all inputs, such as "summarize: ", which tells a model of several tasks what to do.
      metric_fns: the metrics of texts.
      postprocess_fn: see `seqio.Task`.

    Returns:
      The registered task, for any vocabulary with EOS (`VOCABULARY_PATH` or `HF_PATH`).
    """
    arguments = task_arguments.declare(name, **{classification.VOCABULARY_PATH: None})

    def with_prefix(ds: tf.data.Dataset) -> tf.data.Dataset:
        return ds.map(lambda row: {**row, "inputs": tf.strings.join([prefix, row["inputs"]])})

    source = TableSource(files, {"inputs": Text(inputs), "targets": Text(targets)}, "targets")
    return text_to_text.add(
        name, source, arguments, prepare=[with_prefix], metric_fns=metric_fns, postprocess_fn=postprocess_fn
    )
