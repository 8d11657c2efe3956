"""TriviaQA (Joshi et al. 2017) without a context, as text to text (closed-book; Roberts et al. 2020).

    TASK_ARGUMENTS = {"data_dir": "triviaqa-unfiltered"}

`trivia_qa_closed_book`: `trivia_qa question: …` -> the answer. The metrics are the best match among all aliases of the
answer. Without `data_dir`, TFDS provides the data. With it, the official files are read (`unfiltered-web-train.json`),
or files named after the splits (`train.jsonl`) with the rows of TFDS.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from data_tasks import postprocessors, text_to_text
from data_tasks.classification import VOCABULARY_PATH
from data_tasks.columns import Text, Texts
from data_tasks.data_dir import DATA_DIR, DataDirSource
from data_tasks.metrics.question_answering import trivia_qa
from data_tasks.table_files import Table
from t5x_like.data import task_arguments

TASK = "trivia_qa_closed_book"
PREFIX = "trivia_qa question:"

COLUMNS = {
    "question_id": Text(),
    "question": Text(),
    "answer/value": Text(default=b""),
    "answer/aliases": Texts(default=()),
}
"""The features of TFDS that the task reads. Rows to predict have no answers."""


def questions_of_document(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the questions of an official file."""
    for question in document["Data"]:
        answer = question["Answer"]
        yield {
            "question_id": question["QuestionId"],
            "question": question["Question"],
            "answer/value": answer["Value"],
            "answer/aliases": answer["Aliases"],
        }


def question_of_row(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a row of TFDS with the columns of `COLUMNS`."""
    answers = {f"answer/{name}": row["answer"][name] for name in ("value", "aliases")}
    yield {"question_id": row["question_id"], "question": row["question"], **answers}


def to_text(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Make `inputs`, `targets` and `answers`, which are all aliases of the answer, of a question."""

    def question(example):
        answer = example["answer"]
        return {
            "inputs": tf.strings.join([PREFIX, example["question"]], separator=" "),
            "targets": answer["value"],
            "question_id": example["question_id"],
            "answers": tf.concat([[answer["value"]], answer["aliases"]], axis=0),
        }

    return ds.map(question, num_parallel_calls=tf.data.AUTOTUNE)


_ARGUMENTS = task_arguments.declare(
    TASK,
    # A directory with the files of the benchmark. Default: TFDS.
    **{DATA_DIR: None},
    # A Hugging Face directory or a SentencePiece model. Required.
    **{VOCABULARY_PATH: None},
)
_FILES = {
    split: [
        (f"unfiltered-web-{file}.json", Table.of(COLUMNS, expand=questions_of_document)),
        (f"{split}.jsonl", Table.of(COLUMNS, expand=question_of_row)),
    ]
    for split, file in {"train": "train", "validation": "dev"}.items()
}

text_to_text.add(
    TASK,
    DataDirSource(TASK, _ARGUMENTS, _FILES, tfds="trivia_qa/unfiltered.nocontext:1.1.0"),
    _ARGUMENTS,
    prepare=[to_text],
    metric_fns=[trivia_qa],
    postprocess_fn=postprocessors.answers_or_text,
)
