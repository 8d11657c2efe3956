"""Tasks over a user's own tables: one call registers a task whose rows are in .csv, .tsv or .jsonl files."""

import functools
from collections.abc import Callable, Mapping, Sequence

import seqio
import tensorflow as tf

from data_tasks.corpora.columns import Column, Label, Score, Text, unlabeled
from data_tasks.corpora.rows import RowSource
from data_tasks.corpora.table_files import ParsesRows, Table, read_table
from data_tasks.downstream import classification, text_to_text
from data_tasks.metrics.classification import accuracy, f1, pearson_corrcoef, per_score, spearman_corrcoef
from data_tasks.metrics.generation import exact_match
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

UNLABELLED_SPLITS = ("test",)
"""The labels of these splits may be missing from their files, unless a task names others."""


class TableSource(ParsesRows, RowSource):
    """The rows of one file per split.

    Args:
      files: split -> path or URL.
      columns: the features to read.
      labels: the features that may be missing from rows to predict, and from the files of some splits.
      unlabelled: these splits.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        columns: Mapping[str, Column],
        labels: Sequence[str],
        unlabelled: Sequence[str] = UNLABELLED_SPLITS,
    ):
        self._files, self._labels, self._unlabelled = dict(files), tuple(labels), tuple(unlabelled)
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
        texts = {name: column for name, column in self._columns.items() if name not in self._labels}
        return tuple(str(column.column or name) for name, column in texts.items())

    @property
    def row_columns(self) -> dict[str, Column]:
        """The features of a row; its labels may be missing."""
        return {**self._columns, **{label: unlabeled(self._columns[label]) for label in self._labels}}


def add_classification_task(
    name: str,
    files: Mapping[str, str],
    *,
    texts: Sequence[str],
    label: str | Sequence[str],
    labels: Sequence[str] | None,
    metric_fns: Sequence[Callable] | None = None,
    unlabelled: Sequence[str] = UNLABELLED_SPLITS,
) -> seqio.Task:
    """Registers a task that predicts a label or scores for one or two texts.

    Args:
      name: the task name.
      files: split -> path of a .csv, .tsv or .jsonl file. Relative paths begin in the working directory.
      texts: the columns of the one or two texts, in the order in which the model reads them.
      label: the column of the label; for regression also a sequence of columns, each with a score.
      labels: the names of the labels, in the order of their indices; a file holds names or indices. None for
        regression, where the columns hold scores of 0 or more.
      metric_fns: the metrics. Default: accuracy, and F1 if there are two labels; the correlations of Pearson and
        Spearman for regression, of several scores each and their mean.
      unlabelled: the splits whose files may lack the column of labels: `test`, and `train` for a transfer set on which
        a teacher predicts the labels.

    Returns:
      The registered task, for any vocabulary (`VOCABULARY_PATH` or `HF_PATH`).

    Raises:
      UserError: the arguments contradict each other. Files are read later.
    """
    columns = (label,) if isinstance(label, str) else tuple(label)
    if isinstance(texts, str) or not 1 <= len(texts) <= 2 or {*columns, "label"} & set(texts):
        raise UserError(
            f"task {name}: texts={texts!r} are not one or two columns without a label. Give a tuple such as "
            "('title', 'body')."
        )
    if labels is not None and (isinstance(labels, str) or len(set(labels)) != len(labels) or len(labels) < 2):
        raise UserError(f"task {name}: labels={labels!r} are not two or more different names. Give each label once.")
    if len(columns) != 1 and (labels is not None or len(set(columns)) != len(columns) or not columns):
        raise UserError(
            f"task {name}: label={label!r} are not different columns of scores. Give one column, or for scores "
            "labels=None."
        )
    scores = columns if len(columns) > 1 else ()
    if metric_fns is None:
        metric_fns = _default_metrics(labels, scores)
    arguments = task_arguments.declare(name, **{classification.VOCABULARY_PATH: None})
    if scores:
        targets = {score: Score() for score in scores}
    else:
        targets = {"label": Score(*columns) if labels is None else Label(tuple(labels), *columns)}
    return classification.add(
        name,
        TableSource(files, {**{text: Text() for text in texts}, **targets}, tuple(targets), unlabelled),
        arguments,
        texts=tuple(texts),
        labels=labels,
        scores=scores,
        metric_fns=metric_fns,
        prepare=[functools.partial(_stack_scores, scores=scores)] if scores else [],
    )


def _default_metrics(labels: Sequence[str] | None, scores: Sequence[str]) -> list[Callable]:
    if labels is not None:
        return [accuracy, f1] if len(labels) == 2 else [accuracy]
    correlations = [pearson_corrcoef, spearman_corrcoef]
    return [per_score(scores, metric) for metric in correlations] if scores else correlations


def _stack_scores(ds: tf.data.Dataset, *, scores: Sequence[str]) -> tf.data.Dataset:
    """Makes the `label` `[scores]` of each example from its columns."""
    return ds.map(lambda row: {**row, "label": tf.stack([row[score] for score in scores])})


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
    """Registers a text-to-text task: the model reads one column and generates the other.

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

    source = TableSource(files, {"inputs": Text(inputs), "targets": Text(targets)}, ["targets"])
    return text_to_text.add(
        name, source, arguments, prepare=[with_prefix], metric_fns=metric_fns, postprocess_fn=postprocess_fn
    )
