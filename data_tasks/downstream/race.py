"""RACE (Lai et al. 2017): questions of English exams for middle and high school, with four options.

    TASK_ARGUMENTS = {"data_dir": "RACE"}

| task or mixture | form |
|---|---|
| `race_high_multiple_choice`, `race_middle_multiple_choice` | the article, and the question with an option |
| `race_high`, `race_middle` | text to text |
| `race_multiple_choice`, `race` | mixtures of both levels in proportion to their sizes, with the accuracy of each |

Without `data_dir`, TFDS provides the data. With it, the official directory is read (`train/high/*.txt`), or files named
after level and split, such as `high/validation.jsonl`, with the columns of TFDS or a row per question (`question`,
`options`, `answer`).
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.corpora.columns import Column, Label, Text, Texts, unlabeled
from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource, Files
from data_tasks.corpora.rows import Rows
from data_tasks.corpora.table_files import Table, expanded, parse_records
from data_tasks.downstream import multiple_choice, postprocessors, text_to_text
from data_tasks.downstream.classification import VOCABULARY_PATH
from data_tasks.metrics.classification import accuracy
from t5x_like import paths
from t5x_like.data import task_arguments
from t5x_like.data.records import Record, decode, json_object, read_bytes

OPTIONS = ("A", "B", "C", "D")
"""The names of the labels."""

LEVELS = ("high", "middle")

_GAP = "_"
COLUMNS: Mapping[str, Column] = {
    "article": Text(),
    "question": Text(),
    "options": Texts(),
    "label": unlabeled(Label(OPTIONS, "answer")),
}
"""A row per question. Rows to predict have no answer."""


def questions_of_article(article: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the questions of an article with several ones, or the row itself if it has one question.

    Raises:
      ValueError: the numbers of questions, answers and options differ from each other, or options from four.
    """
    if "questions" not in article:
        rows: Sequence[Mapping[str, Any]] = [article]
    else:
        columns = (article["questions"], article["options"], article["answers"])
        rows = [
            {"article": article["article"], "question": question, "options": options, "answer": answer}
            for question, options, answer in zip(*columns, strict=True)
        ]
    for row in rows:
        if len(row["options"]) != len(OPTIONS):
            raise ValueError(f"a question has {len(row['options'])} options, not {len(OPTIONS)}")
        yield row


@dataclasses.dataclass(frozen=True)
class ArticleFolder:
    """A directory with a JSON object per file `*.txt`, an article with its questions; see `data_dir.Layout`."""

    columns: tuple[tuple[str, Column], ...]

    def files(self, path: str) -> Sequence[str]:
        """Returns the files in the order of their names."""
        return [paths.join(path, name) for name in sorted(paths.listdir(path)) if name.endswith(".txt")]

    def read(self, path: str) -> Rows:
        """Returns the rows of all files."""
        return _read_articles(path, self)


@functools.lru_cache(maxsize=8)
def _read_articles(path: str, folder: ArticleFolder) -> Rows:
    records: list[Record] = []
    for file in folder.files(path):
        article = json_object(file, 1, decode(file, read_bytes(file)))
        records += expanded(file, [Record(1, article)], questions_of_article)
    return parse_records(path, records, Table(folder.columns))


def _files(level: str) -> Files:
    columns = tuple(COLUMNS.items())
    rows = Table(columns, expand=questions_of_article)
    folders = {"train": "train", "validation": "dev", "test": "test"}
    return {
        split: [
            (f"{folder}/{level}", ArticleFolder(columns)),
            (f"{level}/{split}.jsonl", rows),
            (f"{split}.jsonl", rows),
        ]
        for split, folder in folders.items()
    }


def _source(task: str, arguments: Mapping[str, Any], level: str) -> DataDirSource:
    return DataDirSource(task, arguments, _files(level), tfds=f"race/{level}:2.0.0", tfds_splits={"validation": "dev"})


# ---- preprocessors ---------------------------------------------------------------------------------------------------


def questions(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Makes an example per question of TFDS's articles. Rows of files are not changed."""
    if "questions" not in ds.element_spec:
        return ds

    def of_article(example):
        per_question = {"question": "questions", "options": "options", "answer": "answers"}
        rows = tf.data.Dataset.from_tensor_slices({name: example[column] for name, column in per_question.items()})

        def row(values):
            label = tf.argmax(tf.constant(OPTIONS) == values["answer"], output_type=tf.int32)
            texts = {"question": values["question"], "options": values["options"]}
            return {"article": example["article"], **texts, "label": label}

        return rows.map(row)

    return ds.flat_map(of_article)


def answer_question(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Joins the question with each option, as the features `A` to `D`, as fairseq's recipe of RoBERTa does.

    The option is put into the gaps (`_`) of the question, or after a question without gaps.
    """

    def answered(question, option):
        parts = tf.strings.split(question, _GAP)
        filled = tf.strings.reduce_join(tf.concat([tf.strings.join([parts[:-1], option]), parts[-1:]], axis=0))
        return tf.where(tf.size(parts) > 1, filled, tf.strings.join([question, option], separator=" "))

    def paired(example):
        question, options = example["question"], example["options"]
        answers = {name: answered(question, options[number]) for number, name in enumerate(OPTIONS)}
        return {"article": example["article"], **answers, "label": example["label"]}

    return ds.map(paired, num_parallel_calls=tf.data.AUTOTUNE)


def to_text(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Makes text of RACE: `race question: … A: … B: … C: … D: … article: …` -> `B`.

    The article comes last, because a text that is too long is truncated at its end.
    """

    def joined(example):
        words: list[Any] = ["race question:", example["question"]]
        for number, name in enumerate(OPTIONS):
            words += [f"{name}:", example["options"][number]]
        inputs = tf.strings.join([*words, "article:", example["article"]], separator=" ")
        return {"inputs": inputs, "targets": text_to_text.label_text(example["label"], OPTIONS)}

    return ds.map(joined, num_parallel_calls=tf.data.AUTOTUNE)


# ---- tasks -----------------------------------------------------------------------------------------------------------


def _declare(name: str) -> task_arguments.Arguments:
    return task_arguments.declare(
        name,
        # A directory with the files of the benchmark. Default: TFDS.
        **{DATA_DIR: None},
        # A Hugging Face directory or a SentencePiece model. Required.
        **{VOCABULARY_PATH: None},
    )


def _add_multiple_choice(name: str, level: str) -> str:
    arguments = _declare(name)
    return multiple_choice.add(
        name,
        _source(name, arguments, level),
        arguments,
        choices=[("article", option) for option in OPTIONS],
        labels=OPTIONS,
        metric_fns=[accuracy],
        prepare=[questions, answer_question],
    ).name


def _add_text_to_text(name: str, level: str) -> str:
    arguments = _declare(name)
    return text_to_text.add(
        name,
        _source(name, arguments, level),
        arguments,
        prepare=[questions, to_text],
        metric_fns=[accuracy],
        postprocess_fn=functools.partial(postprocessors.string_label_to_class_id, label_classes=OPTIONS),
    ).name


for _name, _tasks in {
    "race_multiple_choice": [_add_multiple_choice(f"race_{level}_multiple_choice", level) for level in LEVELS],
    "race": [_add_text_to_text(f"race_{level}", level) for level in LEVELS],
}.items():
    seqio.MixtureRegistry.add(_name, _tasks, default_rate=seqio.mixing_rate_num_examples)
