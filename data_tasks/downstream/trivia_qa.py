"""TriviaQA (Joshi et al. 2017) as text to text.

    TASK_ARGUMENTS = {"data_dir": "triviaqa-unfiltered"}

| task | form |
|---|---|
| `trivia_qa_closed_book` | without a context (Roberts et al. 2020): `trivia_qa question: …` -> the answer |
| `trivia_qa_v010` | `question: … context: …` -> an alias of the answer in the context, as in the t5 package |

The metrics of the first one are the best match among all aliases of the answer; the second one is for training.
Without `data_dir`, TFDS provides the data. With it, files named after the splits (`train.jsonl`) with the rows of TFDS
are read, and by `trivia_qa_closed_book` also the official files (`unfiltered-web-train.json`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.corpora.columns import Text, Texts
from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource
from data_tasks.corpora.table_files import Table
from data_tasks.downstream import postprocessors, text_to_text
from data_tasks.downstream.classification import VOCABULARY_PATH
from data_tasks.downstream.squad import pad_punctuation
from data_tasks.feature_checks import require_lengths
from data_tasks.metrics.question_answering import trivia_qa
from t5x_like.data import task_arguments

TASK, CONTEXT_TASK = "trivia_qa_closed_book", "trivia_qa_v010"
PREFIX = "trivia_qa question:"

COLUMNS = {
    "question_id": Text(),
    "question": Text(),
    "answer/value": Text(default=b""),
    "answer/aliases": Texts(default=()),
}
"""The features of TFDS that the task without a context reads. Rows to predict have no answers."""


def questions_of_document(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the questions of an official file."""
    for question in document["Data"]:
        answer = question["Answer"]
        yield {
            "question_id": question["QuestionId"],
            "question": question["Question"],
            "answer/value": answer["Value"],
            "answer/aliases": answer["Aliases"],
        }


def question_of_row(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields a row of TFDS with the columns of `COLUMNS`."""
    answers = {f"answer/{name}": row["answer"][name] for name in ("value", "aliases")}
    yield {"question_id": row["question_id"], "question": row["question"], **answers}


def to_text(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Makes `inputs`, `targets` and `answers`, which are all aliases of the answer, of a question."""

    def question(example):
        answer = example["answer"]
        return {
            "inputs": tf.strings.join([PREFIX, example["question"]], separator=" "),
            "targets": answer["value"],
            "question_id": example["question_id"],
            "answers": tf.concat([[answer["value"]], answer["aliases"]], axis=0),
        }

    return ds.map(question, num_parallel_calls=tf.data.AUTOTUNE)


# ---- with a context --------------------------------------------------------------------------------------------------

CONTEXTS = {
    "question": Text(),
    "answer/normalized_aliases": Texts(),
    "entity_pages/wiki_context": Texts(default=()),
    "search_results/search_context": Texts(default=()),
}
"""The features of TFDS that the task with contexts reads."""


def contexts_of_row(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields a row of TFDS with the columns of `CONTEXTS`."""
    yield {
        "question": row["question"],
        "answer/normalized_aliases": row["answer"]["normalized_aliases"],
        "entity_pages/wiki_context": row.get("entity_pages", {}).get("wiki_context", []),
        "search_results/search_context": row.get("search_results", {}).get("search_context", []),
    }


def question_and_contexts(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Makes an example per context of a question and alias of its answer that the context has, in this order.

    Returns:
      Examples with `inputs` and `targets`, with spaces around punctuation as the t5 package has them. Capitalization
      does not count when an alias is searched.
    """

    def pairs(example):
        question, aliases = (
            pad_punctuation(example["question"]),
            pad_punctuation(example["answer"]["normalized_aliases"]),
        )
        contexts = [example["entity_pages"]["wiki_context"], example["search_results"]["search_context"]]
        context = pad_punctuation(tf.concat(contexts, axis=0))
        words = tf.strings.regex_replace(tf.strings.lower(aliases), r"([[:punct:]])", r"\\\1")
        occurs = tf.map_fn(
            lambda alias: tf.strings.regex_full_match(tf.strings.lower(context), tf.strings.join([".*", alias, ".*"])),
            words,
            fn_output_signature=tf.TensorSpec([None], tf.bool),
        )
        found = tf.where(tf.transpose(occurs))  # [pairs, 2]: the context, and the alias
        inputs = tf.strings.join(["question:", question, "context:", context], separator=" ")
        return {
            "inputs": tf.gather(tf.strings.regex_replace(inputs, r"\s+", " "), found[:, 0]),
            "targets": tf.gather(aliases, found[:, 1]),
        }

    return ds.map(pairs, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


@tf.autograph.experimental.do_not_convert
def keep_answer(ds: tf.data.Dataset, sequence_length: Mapping[str, int] | None) -> tf.data.Dataset:
    """Cuts a part that contains `targets` out of longer `inputs`, at a random position.

    One position is left for EOS, so that the answer is complete; the t5 package leaves none, which may cut its last
    token off. As in the package, an example is dropped if its `inputs` are too long and do not have the token ids of
    `targets`.

    Args:
      ds: examples with token ids, `inputs` and `targets`.
      sequence_length: the lengths of the features; `inputs` is required.

    Returns:
      Examples with `inputs` of at most the given length minus 1, and `targets`.
    """
    length = require_lengths("TriviaQA with contexts", sequence_length, "inputs")["inputs"] - 1

    @seqio.map_over_dataset(num_seeds=1)
    def cut(example, seed):
        inputs, targets = example["inputs"], example["targets"]
        total, answer = tf.size(inputs), tf.size(targets)
        starts = tf.range(tf.maximum(total - answer + 1, 0))
        windows = tf.gather(inputs, starts[:, tf.newaxis] + tf.range(answer))
        found = tf.boolean_mask(starts, tf.reduce_all(windows == targets, axis=1))
        position = tf.concat([found, [-1]], axis=0)[0]
        first = tf.maximum(position + answer - length, 0)
        last = tf.maximum(tf.minimum(position, total - length), first)
        start = tf.random.stateless_uniform([], seed, first, last + 1, tf.int32)
        fits = (position >= 0) & (answer <= length)
        part = tf.where(fits, length, 0)
        is_short = total <= length
        start, part = tf.where(is_short, 0, start), tf.where(is_short, total, part)
        return {**example, "inputs": inputs[start : start + part]}

    return cut(ds).filter(lambda example: tf.size(example["inputs"]) > 0)


# ---- tasks -----------------------------------------------------------------------------------------------------------


def _declare(name: str) -> task_arguments.Arguments:
    return task_arguments.declare(
        name,
        # A directory with the files of the benchmark. Default: TFDS.
        **{DATA_DIR: None},
        # A Hugging Face directory or a SentencePiece model. Required.
        **{VOCABULARY_PATH: None},
    )


def _add_closed_book() -> None:
    arguments = _declare(TASK)
    files = {
        split: [
            (f"unfiltered-web-{file}.json", Table.of(COLUMNS, expand=questions_of_document)),
            (f"{split}.jsonl", Table.of(COLUMNS, expand=question_of_row)),
        ]
        for split, file in {"train": "train", "validation": "dev"}.items()
    }
    text_to_text.add(
        TASK,
        DataDirSource(TASK, arguments, files, tfds="trivia_qa/unfiltered.nocontext:1.1.0"),
        arguments,
        prepare=[to_text],
        metric_fns=[trivia_qa],
        postprocess_fn=postprocessors.answers_or_text,
    )


def _add_with_contexts() -> None:
    arguments = _declare(CONTEXT_TASK)
    files = {
        split: [(f"{split}.jsonl", Table.of(CONTEXTS, expand=contexts_of_row))] for split in ("train", "validation")
    }
    text_to_text.add(
        CONTEXT_TASK,
        DataDirSource(CONTEXT_TASK, arguments, files, tfds="trivia_qa/rc:1.1.0"),
        arguments,
        prepare=[question_and_contexts],
        metric_fns=[],
        prepare_tokens=[keep_answer],
    )


_add_closed_book()
_add_with_contexts()
