"""SWAG (Zellers et al. 2018): which of four endings continues a sentence.

    TASK_ARGUMENTS = {"data_dir": "swag"}

`swag_multiple_choice` is for models with a head per choice: the first sentence, and the beginning of the second one
with an ending, as in BERT. `swag` is text to text. TFDS does not have SWAG: `data_dir` is required, with the official
files (`train.csv`, `val.csv`, `test.csv`) or files with the same columns named after the splits.
"""

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from data_tasks.corpora.columns import Label, Text, unlabeled
from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource, with_tfds_schema
from data_tasks.corpora.table_files import Table
from data_tasks.downstream import multiple_choice, postprocessors, text_to_text
from data_tasks.downstream.classification import VOCABULARY_PATH
from data_tasks.metrics.classification import accuracy
from t5x_like.data import task_arguments

ENDINGS = ("ending0", "ending1", "ending2", "ending3")
"""The columns of the endings, and the names of the labels."""

_TEXTS = ("sent1", "sent2", *ENDINGS)


def source(task: str, arguments: Mapping[str, Any]) -> DataDirSource:
    """Returns the source of a registered task."""
    columns = {**{name: Text() for name in _TEXTS}, "label": Label(ENDINGS)}
    without = {**columns, "label": unlabeled(columns["label"])}
    official = {
        "train": [("train.csv", Table.of(columns))],
        "validation": [("val.csv", Table.of(columns))],
        "test": [("test.csv", Table.of(without))],
    }
    return DataDirSource(task, arguments, with_tfds_schema(official, without))


def continue_sentence(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Puts the beginning of the second sentence before each ending."""

    def continued(example):
        whole = {name: tf.strings.join([example["sent2"], example[name]], separator=" ") for name in ENDINGS}
        return {**example, **{name: tf.strings.strip(text) for name, text in whole.items()}}

    return ds.map(continued, num_parallel_calls=tf.data.AUTOTUNE)


def _declare(name: str) -> task_arguments.Arguments:
    return task_arguments.declare(
        name,
        # A directory with the files of the benchmark. Required.
        **{DATA_DIR: None},
        # A Hugging Face directory or a SentencePiece model. Required.
        **{VOCABULARY_PATH: None},
    )


def _add_multiple_choice(name: str) -> None:
    arguments = _declare(name)
    multiple_choice.add(
        name,
        source(name, arguments),
        arguments,
        choices=[("sent1", ending) for ending in ENDINGS],
        labels=ENDINGS,
        metric_fns=[accuracy],
        prepare=[continue_sentence],
    )


def _add_text_to_text(name: str) -> None:
    arguments = _declare(name)
    text_to_text.add(
        name,
        source(name, arguments),
        arguments,
        prepare=[functools.partial(text_to_text.join_features, prefix=name, texts=_TEXTS, labels=ENDINGS)],
        metric_fns=[accuracy],
        postprocess_fn=functools.partial(postprocessors.string_label_to_class_id, label_classes=ENDINGS),
    )


_add_multiple_choice("swag_multiple_choice")
_add_text_to_text("swag")
