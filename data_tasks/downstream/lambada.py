"""LAMBADA (Paperno et al. 2016): the last word of a passage that only the whole passage determines.

    TASK_ARGUMENTS = {"data_dir": "lambada"}

The task `lambada` is for decoders and encoder-decoders: `inputs` is the passage without its last word, `targets` that
word with the space before it. Neither ends in EOS, because the passage continues. The metrics are the accuracy of the
first generated word, `accuracy_by_score` (whether every token of the word is the most probable one, which needs no
generation) and the perplexity of the word.

OpenAI's file holds the passages as plain text, as GPT-2 was evaluated on them (Radford et al. 2019, section 3.3), not
as the separate tokens of the original data.

Without `data_dir`, TFDS provides the data. With it, OpenAI's file `lambada_test.jsonl` is read, or files named after
the splits (`test.jsonl`) with a column `text` or `passage`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.corpora.columns import Text
from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource
from data_tasks.corpora.table_files import Table
from data_tasks.downstream.classification import VOCABULARY_PATH, late_vocabulary
from data_tasks.metrics.last_word import last_word_accuracy, last_word_by_score, last_word_perplexity
from data_tasks.metrics.scored import scored_metric
from t5x_like.data import task_arguments

TASK = "lambada"
COLUMNS = {"passage": Text()}
"""The feature of TFDS."""

_LAST_WORD = r"(?s)^(.*\S)\s+(\S+)\s*$"


def passage_of_row(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields a row with the column `passage`, which may be named `text`.

    Raises:
      ValueError: the passage has fewer than two words.
    """
    passage = row["text"] if "text" in row else row["passage"]
    if len(passage.split()) < 2:
        raise ValueError(f"the passage {passage!r:.40} has fewer than two words")
    yield {"passage": passage}


def split_last_word(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Divides a passage: `a b c` -> inputs `a b`, targets ` c`."""

    def divided(example):
        passage = example["passage"]
        return {
            "inputs": tf.strings.regex_replace(passage, _LAST_WORD, r"\1"),
            "targets": tf.strings.regex_replace(passage, _LAST_WORD, r" \2"),
        }

    return ds.map(divided, num_parallel_calls=tf.data.AUTOTUNE)


def keep_last_tokens(ds: tf.data.Dataset, sequence_length: Mapping[str, int] | None) -> tf.data.Dataset:
    """Drops the beginning of `inputs` that are too long, since the word follows their end."""
    if not (length := (sequence_length or {}).get("inputs")):
        return ds
    return ds.map(lambda example: {**example, "inputs": example["inputs"][-length:]})


def without_spaces(text: str, **_) -> str:
    """Returns a text without whitespace at its ends."""
    return text.strip()


_ARGUMENTS = task_arguments.declare(
    TASK,
    # A directory with the files of the benchmark. Default: TFDS.
    **{DATA_DIR: None},
    # A Hugging Face directory or a SentencePiece model. Required.
    **{VOCABULARY_PATH: None},
)
_TABLE = Table.of(COLUMNS, expand=passage_of_row)
_FILES = {
    "train": [("train.jsonl", _TABLE)],
    "test": [("lambada_test.jsonl", _TABLE), ("test.jsonl", _TABLE)],
}

seqio.TaskRegistry.add(
    TASK,
    source=DataDirSource(TASK, _ARGUMENTS, _FILES, tfds="lambada:1.0.0"),
    preprocessors=[split_last_word, seqio.preprocessors.tokenize, keep_last_tokens],
    output_features={name: seqio.Feature(late_vocabulary(_ARGUMENTS), add_eos=False) for name in ("inputs", "targets")},
    postprocess_fn=without_spaces,
    metric_fns=[last_word_accuracy, last_word_perplexity],
    metric_objs=[scored_metric(last_word_by_score, without_spaces)],
)
