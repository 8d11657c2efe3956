"""The task `text_table`: pairs of texts in the columns of a table, such as a teacher's texts in the output of `infer`.

    TASK_ARGUMENTS = {"train": "teacher.jsonl", "targets": "prediction", "validation": "validation.jsonl"}

The files are .jsonl, or .tsv and .csv with a header. `data_tasks.downstream.own_tables.add_text_to_text_task` registers
a task with a name and metrics of its own.
"""

import tensorflow as tf

from data_tasks.corpora.columns import Column, Text, unlabeled
from data_tasks.corpora.rows import Rows
from data_tasks.corpora.split_files import SPLITS, SplitFiles
from data_tasks.corpora.table_files import ParsesRows, Table, read_table
from data_tasks.downstream import text_to_text
from data_tasks.downstream.classification import VOCABULARY_PATH
from data_tasks.metrics.generation import exact_match
from t5x_like.data import task_arguments

TASK = "text_table"
_UNLABELLED_SPLIT = "test"


class TextTableSource(ParsesRows, SplitFiles):
    """The pairs in the files that the arguments of the task give; see `SplitFiles`."""

    def _columns(self, split: str) -> dict[str, Column]:
        targets = self._arguments["targets"]
        if split != "train" and self._arguments["evaluation_targets"] is not None:
            targets = self._arguments["evaluation_targets"]
        column = Text(targets)
        return {
            "inputs": Text(self._arguments["inputs"]),
            "targets": unlabeled(column) if split == _UNLABELLED_SPLIT else column,
        }

    def read_file(self, split: str, path: str) -> Rows:
        """Returns the rows of the file of a split; see `SplitFiles.read_file`."""
        return read_table(path, Table.of(self._columns(split)))

    @property
    def text_features(self) -> tuple[str, ...]:
        """The name of the column that the model reads."""
        return (self._arguments["inputs"],)

    @property
    def row_columns(self) -> dict[str, Column]:
        """The features of a row; its targets may be missing."""
        return self._columns(_UNLABELLED_SPLIT)


def _add() -> None:
    arguments = task_arguments.declare(
        TASK,
        # The files of the splits, local or in a bucket. A split without a file does not exist; `test` may lack targets.
        **dict.fromkeys(SPLITS),
        # The column of the texts that the model reads.
        inputs="inputs",
        # The column of the texts that it generates: `prediction` in the output of `infer`.
        targets="targets",
        # The column of the targets of the splits other than `train`. Default: `targets`.
        evaluation_targets=None,
        # A text before all inputs, such as "translate English to German: ".
        prefix="",
        # A Hugging Face directory or a SentencePiece model. Required.
        **{VOCABULARY_PATH: None},
    )

    def with_prefix(ds: tf.data.Dataset) -> tf.data.Dataset:
        return ds.map(lambda row: {**row, "inputs": tf.strings.join([arguments["prefix"], row["inputs"]])})

    source = TextTableSource(TASK, arguments)
    text_to_text.add(TASK, source, arguments, prepare=[with_prefix], metric_fns=[exact_match])


_add()
