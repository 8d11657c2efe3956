"""Summarization as text to text (Raffel et al. 2020): `summarize: …` -> the summary.

    TASK_ARGUMENTS = {"data_dir": "cnn_dailymail"}

The tasks are `cnn_dailymail_v002` (See et al. 2017), as in the t5 package, and `xsum` (Narayan et al. 2018). Without
`data_dir`, TFDS provides the data. With it, files named after the splits are read (`train.jsonl`, `validation.csv`),
whose columns have the names of TFDS.
"""

import functools

import tensorflow as tf

from data_tasks.corpora.columns import Text
from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource, with_tfds_schema
from data_tasks.downstream import text_to_text
from data_tasks.downstream.classification import VOCABULARY_PATH
from data_tasks.metrics.generation import rouge
from t5x_like.data import task_arguments

PREFIX = "summarize:"


def summarize(ds: tf.data.Dataset, *, article: str, summary: str) -> tf.data.Dataset:
    """Makes `inputs` and `targets` of an article and its summary.

    Args:
      ds: examples.
      article: the feature that holds the article.
      summary: the feature that holds the summary.
    """

    def to_text(example):
        return {
            "inputs": tf.strings.join([PREFIX, example[article]], separator=" "),
            "targets": example[summary],
        }

    return ds.map(to_text, num_parallel_calls=tf.data.AUTOTUNE)


def _add(name: str, tfds: str, *, article: str, summary: str) -> None:
    arguments = task_arguments.declare(
        name,
        # A directory with files of the schema of TFDS. Default: TFDS.
        **{DATA_DIR: None},
        # A Hugging Face directory or a SentencePiece model. Required.
        **{VOCABULARY_PATH: None},
    )
    splits: dict[str, list] = {"train": [], "validation": [], "test": []}
    files = with_tfds_schema(splits, {article: Text(), summary: Text()})
    text_to_text.add(
        name,
        DataDirSource(name, arguments, files, tfds=tfds, target_texts=lambda: (summary,)),
        arguments,
        prepare=[functools.partial(summarize, article=article, summary=summary)],
        metric_fns=[rouge],
    )


_add("cnn_dailymail_v002", "cnn_dailymail:3.4.0", article="article", summary="highlights")
_add("xsum", "xsum:1.1.0", article="document", summary="summary")
