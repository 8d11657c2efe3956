"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), as span extraction and text to text.

    TASK_ARGUMENTS = {"data_dir": "squad"}

| task | form |
|---|---|
| `squad_v1_spans`, `squad_v2_spans` | the positions of the answer in windows of the context, as in BERT |
| `squad_v010_allanswers` | SQuAD 1.1 as text, as in the t5 package |
| `squad_v010_context_free` | SQuAD 1.1 as text without the context, as in the t5 package |
| `squad_v010_allanswers_span` | SQuAD 1.1 as text; the target is where the answer is: `start: 12 end: 14` |
| `squad_v2_allanswers` | SQuAD 2.0 as text; the answer of an unanswerable question is `unanswerable` |

Without `data_dir`, TFDS provides the data. With it, the official files are read (`train-v1.1.json`, `dev-v2.0.json`),
or files named after the splits (`train.json`, `validation.jsonl`) with the rows of TFDS.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from data_tasks.corpora.columns import Integers, Text, Texts
from data_tasks.corpora.data_dir import DATA_DIR, DataDirSource, Files
from data_tasks.corpora.table_files import Table
from data_tasks.downstream import postprocessors, span_extraction, text_to_text
from data_tasks.downstream.classification import VOCABULARY_PATH, late_vocabulary
from data_tasks.metrics import question_answering, spans
from t5x_like.data import task_arguments
from t5x_like.vocabularies.shipped import PASS_THROUGH

UNANSWERABLE = "unanswerable"
"""The target of a question without an answer in the text-to-text form."""

COLUMNS = {
    "id": Text(),
    "question": Text(),
    "context": Text(),
    "answers/text": Texts(default=()),
    "answers/answer_start": Integers(default=()),
}
"""The features of TFDS that the tasks read. Rows to predict have no answers."""


# ---- files -----------------------------------------------------------------------------------------------------------


def questions_of_document(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the questions of an official file, or the rows of a file with a list `data` of them.

    Raises:
      ValueError: an answer is not at its position in the context.
    """
    for article in document["data"]:
        if "paragraphs" not in article:
            yield from question_of_row(article)
            continue
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question["answers"]
                columns = {name: [answer[name] for answer in answers] for name in ("text", "answer_start")}
                yield from question_of_row({**question, "context": paragraph["context"], "answers": columns})


def question_of_row(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields a row of TFDS with the columns of `COLUMNS`.

    Raises:
      ValueError: an answer is not at its position in the context.
    """
    answers, context = row["answers"], row["context"]
    for text, start in zip(answers["text"], answers["answer_start"], strict=True):
        if context[start : start + len(text)] != text:
            raise ValueError(
                f"question {row['id']!r}: the answer {text!r:.40} is not at the character {start} of its context"
            )
    yield {
        **{name: row[name] for name in ("id", "question", "context")},
        **{f"answers/{name}": answers[name] for name in ("text", "answer_start")},
    }


def _files(version: str) -> Files:
    document, row = Table.of(COLUMNS, expand=questions_of_document), Table.of(COLUMNS, expand=question_of_row)
    return {
        split: [(f"{file}-v{version}.json", document), (f"{split}.json", document), (f"{split}.jsonl", row)]
        for split, file in {"train": "train", "validation": "dev"}.items()
    }


def _source(task: str, arguments: Mapping[str, Any], version: str) -> DataDirSource:
    return DataDirSource(task, arguments, _files(version), tfds=f"squad/v{version}:3.0.0")


# ---- span extraction -------------------------------------------------------------------------------------------------


def _add_spans(name: str, version: str, metric: Callable) -> None:
    arguments = task_arguments.declare(
        name,
        # A directory with the files of the benchmark. Default: TFDS.
        **{DATA_DIR: None},
        # A Hugging Face directory or a SentencePiece model. Required.
        **{VOCABULARY_PATH: None},
        # The number of pieces between the beginnings of two windows of a context.
        doc_stride=span_extraction.DOC_STRIDE,
        # The number of pieces of a question that are kept.
        max_question_length=span_extraction.MAX_QUESTION_LENGTH,
    )
    seqio.TaskRegistry.add(
        name,
        source=_source(name, arguments, version),
        preprocessors=[
            functools.partial(
                span_extraction.span_windows,
                stride=lambda: arguments["doc_stride"],
                max_question_length=lambda: arguments["max_question_length"],
            )
        ],
        output_features={
            "inputs": seqio.Feature(late_vocabulary(arguments), add_eos=False),
            "token_types": seqio.Feature(PASS_THROUGH, add_eos=False),
            "targets": seqio.Feature(PASS_THROUGH, add_eos=False),
        },
        postprocess_fn=spans.window_or_text,
        metric_fns=[metric],
    )


# ---- text to text ----------------------------------------------------------------------------------------------------


def pad_punctuation(text: tf.Tensor) -> tf.Tensor:
    """Puts spaces around punctuation, and replaces each run of whitespace by one space, as the t5 package does."""
    return tf.strings.regex_replace(tf.strings.regex_replace(text, r"([[:punct:]])", r" \1 "), r"\s+", " ")


def question_and_context(ds: tf.data.Dataset, *, include_context: bool = True) -> tf.data.Dataset:
    """Makes text of SQuAD: `question: Who ? context: Rollo was it .` -> `Rollo`, with spaces around punctuation.

    Args:
      ds: examples with the features of TFDS.
      include_context: whether `inputs` have the context. Without it they begin with `squad trivia question:`.

    Returns:
      Examples with `inputs`, `targets`, which is the first answer or `UNANSWERABLE`, `id`, `question`, `context` and
      `answers`.
    """

    def to_text(example):
        question, context = pad_punctuation(example["question"]), pad_punctuation(example["context"])
        answers = pad_punctuation(example["answers"]["text"])
        with_context = ["question:", question, "context:", context]
        words = with_context if include_context else ["squad trivia question:", question]
        return {
            "inputs": tf.strings.regex_replace(tf.strings.join(words, separator=" "), r"\s+", " "),
            "targets": tf.concat([answers, [UNANSWERABLE]], axis=0)[0],
            "id": example["id"],
            "question": question,
            "context": context,
            "answers": answers,
        }

    return ds.map(to_text, num_parallel_calls=tf.data.AUTOTUNE)


def question_and_span(ds: tf.data.Dataset) -> tf.data.Dataset:
    """Makes text of SQuAD whose target is the position of the first answer in the context: `start: 12 end: 14`.

    As in the t5 package, a context and an answer with spaces around punctuation are cut at each space and at each
    character that is not a letter, a digit or `_`, so that some pieces are empty. Both positions count pieces from 0
    and are inclusive. Questions whose answer is not a sequence of pieces before the last piece are left out.

    Returns:
      The examples of `question_and_context` with other `targets`.
    """

    def to_span(example):
        context, answer = _pieces(example["context"]), _pieces(example["targets"])
        count = tf.size(answer)
        # The package compares windows up to the one before the last.
        starts = tf.range(tf.maximum(tf.size(context) - count, 0))
        windows = tf.gather(context, starts[:, tf.newaxis] + tf.range(count))
        found = tf.boolean_mask(starts, tf.reduce_all(windows == answer, axis=1))
        start = tf.concat([found, [-1]], axis=0)[0]
        words = ["start:", tf.as_string(start), "end:", tf.as_string(start + count - 1)]
        return {**example, "targets": tf.where(start < 0, "", tf.strings.join(words, separator=" "))}

    ds = question_and_context(ds).map(to_span, num_parallel_calls=tf.data.AUTOTUNE)
    return ds.filter(lambda example: tf.strings.length(example["targets"]) > 0)


def _pieces(text: tf.Tensor) -> tf.Tensor:
    return tf.strings.split(tf.strings.regex_replace(text, r"\W", " "), " ")


def span_text(text: str, *, example: Mapping[str, Any], is_target: bool) -> Sequence[str] | str:
    """Returns all answers of an example as its target, and the words at the predicted positions.

    Positions come from `question_and_span`. The metric of the t5 package counts words without the empty pieces that
    its targets count, so it gives less than 100 for the targets themselves.
    """
    if is_target:
        return postprocessors.answers_or_text(text, example=example, is_target=True)
    positions = re.fullmatch(r"\s*start:\s*(\d{1,9})\s+end:\s*(\d{1,9})\s*", text)
    if positions is None:
        return ""
    pieces = re.sub(r"[^A-Za-z0-9_]", " ", example["context"].decode("utf-8")).split(" ")
    return " ".join(pieces[int(positions[1]) : int(positions[2]) + 1])


def answers_or_none(text: str, *, example: Mapping[str, Any], is_target: bool) -> Sequence[str] | str:
    """Returns all answers of an example as its target, and a predicted text, empty for `UNANSWERABLE`."""
    text = "" if text.strip() == UNANSWERABLE else text
    return postprocessors.answers_or_text(text, example=example, is_target=is_target)


def _add_text_to_text(
    name: str, version: str, metric: Callable, postprocess: Callable, prepare: Callable = question_and_context
) -> None:
    arguments = task_arguments.declare(
        name,
        # A directory with the files of the benchmark. Default: TFDS.
        **{DATA_DIR: None},
        # A Hugging Face directory or a SentencePiece model. Required.
        **{VOCABULARY_PATH: None},
    )
    text_to_text.add(
        name,
        _source(name, arguments, version),
        arguments,
        prepare=[prepare],
        metric_fns=[metric],
        postprocess_fn=postprocess,
    )


_add_spans("squad_v1_spans", "1.1", spans.squad_v1_spans)
_add_spans("squad_v2_spans", "2.0", spans.squad_v2_spans)
_add_text_to_text("squad_v010_allanswers", "1.1", question_answering.squad, postprocessors.answers_or_text)
_add_text_to_text(
    *("squad_v010_context_free", "1.1", question_answering.squad, postprocessors.answers_or_text),
    prepare=functools.partial(question_and_context, include_context=False),
)
_add_text_to_text("squad_v010_allanswers_span", "1.1", question_answering.squad, span_text, prepare=question_and_span)
_add_text_to_text("squad_v2_allanswers", "2.0", question_answering.squad_v2, answers_or_none)
