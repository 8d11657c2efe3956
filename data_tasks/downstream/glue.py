"""The GLUE benchmark (Wang et al. 2018): nine tasks and the diagnostic dataset AX.

    TASK_ARGUMENTS = {"data_dir": "glue/SST-2"}

Each task has two forms: `glue_<name>_classification`, for models with a classification head, and `glue_<name>_v002`,
text to text as in the t5 package; `data_tasks.downstream.wnli_simple` has another form of WNLI. MRPC, QQP and STS-B
compare two texts whose order does not matter: the mixtures `glue_<name>_both_orders_classification` also train on each
pair in the other order, as ELECTRA's released code does (Clark et al. 2020).

Without `data_dir`, TFDS provides the data. With it, the official files of the task are read, or files named after the
splits (`train.jsonl`, `validation.csv`) whose columns have the names of TFDS. A directory with the official directories
of all tasks (`SST-2`, `MRPC`, …) also works.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.corpora.columns import Column, Integer, Label, Score, Text, unlabeled
from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource, Files, with_tfds_schema
from data_tasks.corpora.table_files import Table
from data_tasks.downstream import classification, postprocessors, text_to_text
from data_tasks.metrics.classification import accuracy, f1, matthews_corrcoef, pearson_corrcoef, spearman_corrcoef
from t5x_like.data import task_arguments

TFDS_VERSION = "2.0.0"
ENTAILMENT = ("entailment", "neutral", "contradiction")
TWO_WAY_ENTAILMENT = ("entailment", "not_entailment")
_SENTENCES = {"sentence1": "sentence1", "sentence2": "sentence2"}
_PREMISE = {"premise": "sentence1", "hypothesis": "sentence2"}


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """A task of GLUE.

    Attributes:
      name: its name in TFDS.
      folder: the official directory.
      texts: feature of TFDS -> official column of each text, in the order of the template.
      labels: the names of the labels in TFDS's order; None for regression.
      label_column: the official column of labels; None if no file has labels.
      metrics: the published metrics.
      prefix: the first word of the text-to-text form.
      files: split -> official file.
      skip_incomplete: whether the official files have incomplete rows.
    """

    name: str
    folder: str
    texts: Mapping[str, str]
    labels: tuple[str, ...] | None
    label_column: str | None
    metrics: tuple[Callable, ...]
    prefix: str
    files: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}
    )
    skip_incomplete: bool = False

    def label(self, column: str | int | None = None) -> Column:
        """Returns the column of labels."""
        return Score(column) if self.labels is None else Label(self.labels, column)

    def evaluated(self) -> "GlueTask":
        """Returns the task without its training split."""
        return dataclasses.replace(self, files={split: file for split, file in self.files.items() if split != "train"})

    def swapped(self) -> "GlueTask":
        """Returns the training split with the two texts in the other order."""
        texts, files = dict(reversed(self.texts.items())), {"train": self.files["train"]}
        return dataclasses.replace(self, texts=texts, files=files)

    @property
    def tfds_columns(self) -> dict[str, Column]:
        """The features of TFDS."""
        return {**{name: Text() for name in self.texts}, "label": unlabeled(self.label()), "idx": Integer()}

    def tables(self) -> Files:
        """Returns the files of each split."""
        official = {}
        for split, file in self.files.items():
            label = self.label(self.label_column)
            columns = {
                **{name: Text(column) for name, column in self.texts.items()},
                "label": unlabeled(label) if split.startswith("test") else label,
                "idx": Integer(),
            }
            if self.name == "cola" and split != "test":  # the only files without a header
                columns |= {"sentence": Text(3), "label": Label(self.labels, 1)}
            official[split] = [(file, Table.of(columns, skip_incomplete=self.skip_incomplete))]
        return with_tfds_schema(official, self.tfds_columns)

    def source(self, task: str, arguments: Mapping[str, Any]) -> DataDirSource:
        """Returns the source of a registered task."""
        return DataDirSource(
            task, arguments, self.tables(), folders=(self.folder,), tfds=f"glue/{self.name}:{TFDS_VERSION}"
        )


_MNLI = {
    "folder": "MNLI",
    "texts": _PREMISE,
    "labels": ENTAILMENT,
    "label_column": "gold_label",
    "metrics": (accuracy,),
    "prefix": "mnli",
}
_MRPC_TEXTS = {"sentence1": "#1 String", "sentence2": "#2 String"}
_QQP_TEXTS = {"question1": "question1", "question2": "question2"}

TASKS = (
    GlueTask(
        *("cola", "CoLA", {"sentence": "sentence"}, ("unacceptable", "acceptable"), "is_acceptable"),
        metrics=(matthews_corrcoef,),
        prefix="cola",
    ),
    GlueTask("sst2", "SST-2", {"sentence": "sentence"}, ("negative", "positive"), "label", (accuracy,), "sst2"),
    GlueTask("mrpc", "MRPC", _MRPC_TEXTS, ("not_equivalent", "equivalent"), "Quality", (f1, accuracy), "mrpc"),
    GlueTask(
        *("qqp", "QQP", _QQP_TEXTS, ("not_duplicate", "duplicate"), "is_duplicate", (f1, accuracy), "qqp"),
        skip_incomplete=True,
    ),
    GlueTask("stsb", "STS-B", _SENTENCES, None, "score", (pearson_corrcoef, spearman_corrcoef), "stsb"),
    GlueTask(
        "mnli",
        **_MNLI,
        files={
            "train": "train.tsv",
            "validation_matched": "dev_matched.tsv",
            "validation_mismatched": "dev_mismatched.tsv",
            "test_matched": "test_matched.tsv",
            "test_mismatched": "test_mismatched.tsv",
        },
    ),
    GlueTask("mnli_matched", **_MNLI, files={"validation": "dev_matched.tsv", "test": "test_matched.tsv"}),
    GlueTask("mnli_mismatched", **_MNLI, files={"validation": "dev_mismatched.tsv", "test": "test_mismatched.tsv"}),
    GlueTask(
        *("qnli", "QNLI", {"question": "question", "sentence": "sentence"}, TWO_WAY_ENTAILMENT, "label"),
        metrics=(accuracy,),
        prefix="qnli",
    ),
    GlueTask("rte", "RTE", _SENTENCES, TWO_WAY_ENTAILMENT, "label", (accuracy,), "rte"),
    GlueTask("wnli", "WNLI", _SENTENCES, ("not_entailment", "entailment"), "label", (accuracy,), "wnli"),
    GlueTask(*("ax", "diagnostic", _PREMISE, ENTAILMENT, None, (accuracy,), "mnli"), files={"test": "diagnostic.tsv"}),
)
"""The tasks. AX has no labels: its metric needs the answers of the benchmark's server."""


def stsb_to_text(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Makes text of STS-B: the score is rounded to the nearest of 0.0, 0.2, …, 5.0, as in T5.

    An unknown score becomes -1.0, as in the t5 package.
    """

    def to_text(example):
        words = ["stsb sentence1:", example["sentence1"], "sentence2:", example["sentence2"]]
        score = tf.as_string(tf.round(example["label"] * 5) / 5, precision=1)
        return {"idx": example["idx"], "inputs": tf.strings.join(words, separator=" "), "targets": score}

    return ds.map(to_text, num_parallel_calls=tf.data.AUTOTUNE)


def declare(name: str) -> task_arguments.Arguments:
    """Declares the arguments of a task of GLUE."""
    return task_arguments.declare(
        name,
        # A directory with the files of the benchmark. Default: TFDS.
        **{DATA_DIR: None},
        # A Hugging Face directory or a SentencePiece model. Required.
        **{classification.VOCABULARY_PATH: None},
    )


def _add_classification(task: GlueTask, name: str) -> None:
    arguments = declare(name)
    classification.add(
        name,
        task.source(name, arguments),
        arguments,
        texts=tuple(task.texts),
        labels=task.labels,
        metric_fns=task.metrics,
    )


def _add_text_to_text(task: GlueTask) -> None:
    arguments = declare(name := f"glue_{task.name}_v002")
    if task.labels is None:
        prepare, postprocess = stsb_to_text, postprocessors.string_to_float
    else:
        # As in the t5 package, texts are in the order of their names.
        prepare = functools.partial(
            text_to_text.join_features, prefix=task.prefix, texts=sorted(task.texts), labels=task.labels
        )
        postprocess = functools.partial(postprocessors.string_label_to_class_id, label_classes=task.labels)
    text_to_text.add(
        name,
        task.source(name, arguments),
        arguments,
        prepare=[prepare],
        metric_fns=task.metrics,
        postprocess_fn=postprocess,
    )


def _add_both_orders(task: GlueTask) -> None:
    _add_classification(task.swapped(), swapped := f"glue_{task.name}_swapped_classification")
    seqio.MixtureRegistry.add(
        f"glue_{task.name}_both_orders_classification", [(f"glue_{task.name}_classification", 1.0), (swapped, 1.0)]
    )


for _task in TASKS:
    _add_classification(_task, f"glue_{_task.name}_classification")
    _add_text_to_text(_task)
    if _task.name in ("mrpc", "qqp", "stsb"):
        _add_both_orders(_task)
