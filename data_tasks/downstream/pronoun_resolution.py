"""Definite pronoun resolution (Rahman and Ng 2012), which T5 trains on together with WSC.

    TASK_ARGUMENTS = {"data_dir": "dpr"}

The task `dpr_v001_simple` is text to text, as in the t5 package: `wsc: Bob asked Tom if *he* can lend some money.` ->
`Tom`. Without `data_dir`, TFDS provides the data. With it, files named after the splits are read (`train.jsonl`,
`test.jsonl`), with the features of TFDS: `sentence`, `pronoun`, `candidates` (a list), and `label`, 0 or 1.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from data_tasks.corpora.columns import Column, Label, Text, Texts, unlabeled
from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource, Files
from data_tasks.corpora.table_files import Table
from data_tasks.downstream import text_to_text
from data_tasks.downstream.classification import VOCABULARY_PATH
from data_tasks.metrics.classification import accuracy
from t5x_like.data import task_arguments
from t5x_like.vocabularies.labels import UNKNOWN

TASK = "dpr_v001_simple"
TFDS_NAME = "definite_pronoun_resolution:1.1.0"
COLUMNS: dict[str, Column] = {
    "sentence": Text(),
    "pronoun": Text(),
    "candidates": Texts(),
    "label": Label(("0", "1")),
}
"""The features of TFDS. The label is the position of the referent in `candidates`."""


def _files() -> Files:
    without = {
        "candidates": dataclasses.replace(COLUMNS["candidates"], default=()),
        "label": unlabeled(COLUMNS["label"]),
    }
    return {
        "train": [("train.jsonl", Table.of(COLUMNS))],
        "test": [("test.jsonl", Table.of({**COLUMNS, **without}))],
    }


def to_text(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Puts `*` around the first occurrence of the pronoun that a space, period or comma follows, as in the t5 package.

    Returns:
      Examples with `inputs`, `targets` (the referent, or `UNKNOWN_LABEL`), `candidates` and `label`.
    """

    def converted(example):
        pattern = tf.strings.join([" (", example["pronoun"], r")( |\.|,)"])
        marked = tf.strings.regex_replace(example["sentence"], pattern, r" *\1*\2", replace_global=False)
        referents = tf.concat([[text_to_text.UNKNOWN_LABEL], example["candidates"]], axis=0)
        return {
            "inputs": tf.strings.join(["wsc:", marked], separator=" "),
            "targets": referents[tf.cast(example["label"], tf.int32) + 1],
            "candidates": example["candidates"],
            "label": example["label"],
        }

    return ds.map(converted, num_parallel_calls=tf.data.AUTOTUNE)


def referent(text: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> int:
    """Returns the position of a predicted referent among the candidates, -1 if it is none; for a target the label."""
    if is_target:
        return int(example["label"])
    candidates = [candidate.decode("utf-8") for candidate in example["candidates"]]
    return candidates.index(text) if text in candidates else UNKNOWN


_ARGUMENTS = task_arguments.declare(
    TASK,
    # A directory with the files. Default: TFDS.
    **{DATA_DIR: None},
    # A Hugging Face directory or a SentencePiece model. Required.
    **{VOCABULARY_PATH: None},
)
text_to_text.add(
    TASK,
    DataDirSource(TASK, _ARGUMENTS, _files(), folders=("DPR",), tfds=TFDS_NAME),
    _ARGUMENTS,
    prepare=[to_text],
    metric_fns=[accuracy],
    postprocess_fn=referent,
)
