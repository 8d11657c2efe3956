"""Rank classification: the answer of a classification task that the model finds most probable.

Each example becomes one row per answer. The model scores the answers, and the answer of the highest log-probability is
the prediction; nothing is generated. Every text-to-text task whose targets are label words also exists in this form:
`glue_rte_v002` as `glue_rte_v002_rank`. These tasks are for evaluation: a model that is trained on them would learn
wrong answers.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from data_tasks.downstream import (  # noqa: F401 (the tasks that get a form)
    glue,
    race,
    super_glue,
    swag,
)
from data_tasks.downstream.super_glue_files import FALSE_TRUE
from t5x_like.data import task_arguments
from t5x_like.errors import UserError

SUFFIX = "_rank"
PER_TOKEN = "_per_token"
"""Suffix of the metrics of predictions by the log-probability per token."""

EXAMPLE, ANSWER, ANSWERS, LABEL = "rank/example", "rank/answer", "rank/answers", "rank/label"
"""Features of a row: the number of its example, the index and the number of answers, and the text of the target."""


def text_stage(task: seqio.Task) -> int:
    """Returns the number of the preprocessor that tokenizes; the ones before it make `inputs` and `targets` as text.

    Raises:
      UserError: the task does not tokenize with SeqIO's preprocessor.
    """
    functions = [getattr(preprocessor, "func", preprocessor) for preprocessor in task.preprocessors]
    if seqio.preprocessors.tokenize not in functions:
        raise UserError(
            f"task {task.name}: its preprocessors lack seqio.preprocessors.tokenize, before which inputs and targets "
            "are text. Give a text-to-text task."
        )
    return functions.index(seqio.preprocessors.tokenize)


def rows_of_answers(ds: tf.data.Dataset, *, answers: Sequence[str] | str) -> tf.data.Dataset:
    """Makes a row per answer of each example.

    Args:
      ds: examples with `inputs` and `targets`, scalar strings.
      answers: the answers, or the feature that holds the answers of an example, string `[answers]`.

    Returns:
      Rows with the answer as `targets`, and the features `EXAMPLE`, `ANSWER`, `ANSWERS` and `LABEL`.
    """

    def rows(number, example):
        texts = example[answers] if isinstance(answers, str) else tf.constant(list(answers))
        count = tf.size(texts)
        shared = {**example, EXAMPLE: number, ANSWERS: count, LABEL: example["targets"]}

        def row(index):
            return {**shared, "targets": texts[index], ANSWER: index}

        return tf.data.Dataset.range(tf.cast(count, tf.int64)).map(row)

    return ds.enumerate().flat_map(rows)


def ranked(
    text: str, *, example: Mapping[str, Any], is_target: bool = True, postprocess: Callable | None = None
) -> dict[str, Any]:
    """Returns what the metrics read of a row.

    Args:
      text: the answer.
      example: the features of the row, with the token ids of the answer as `targets`.
      is_target: True; a score has no prediction.
      postprocess: the postprocessor of the task.

    Returns:
      The features of `rows_of_answers`, the number of `tokens` of the answer, whether it is `correct`, and the
      postprocessed `target` of the example and `prediction` of this answer.
    """
    del is_target
    postprocess = postprocess or (lambda text, **_: text)
    label = example[LABEL].decode("utf-8")
    return {
        "example": int(example[EXAMPLE]),
        "answer": int(example[ANSWER]),
        "answers": int(example[ANSWERS]),
        "tokens": len(example["targets"]),
        "correct": text == label,
        "target": postprocess(label, example=example, is_target=True),
        "prediction": postprocess(text, example=example, is_target=False),
    }


def rank_classification(metric_fns: Sequence[Callable]) -> Callable[[Sequence, Sequence], dict[str, float]]:
    """Returns a metric of scores that computes metrics of predictions.

    The prediction for an example is the answer with the highest score, the first of equal ones. Examples of which some
    answers are missing, because the number of rows is limited, do not count.

    Args:
      metric_fns: the metrics of the task, functions of targets and predictions.

    Returns:
      A function of targets (see `ranked`) and scores. It returns `accuracy` in percent over the examples whose target
      is an answer, and the metrics of the task; and the same for log-probabilities per token, with the suffix
      `PER_TOKEN`.
    """

    def metric(targets: Sequence[Mapping[str, Any]], scores: Sequence[float]) -> dict[str, float]:
        examples: dict[int, list[tuple[Mapping[str, Any], float]]] = {}
        for row, score in zip(targets, scores, strict=True):
            examples.setdefault(row["example"], []).append((row, float(score)))
        complete = [rows for rows in examples.values() if len(rows) == rows[0][0]["answers"]]
        if not complete:
            raise UserError(
                f"rank classification: none of {len(examples)} examples has all of its answers among the rows. "
                "Increase NUM_EXAMPLES, which counts an answer as a row, or give None."
            )
        plain = _metrics(metric_fns, complete, lambda row, score: score)
        per_token = _metrics(metric_fns, complete, lambda row, score: score / max(row["tokens"], 1))
        return {**plain, **{f"{name}{PER_TOKEN}": value for name, value in per_token.items()}}

    return metric


def _metrics(metric_fns, examples, key) -> dict[str, float]:
    best = [max(rows, key=lambda pair: key(*pair))[0] for rows in examples]
    known = [
        row["correct"] for row, rows in zip(best, examples, strict=True) if any(each["correct"] for each, _ in rows)
    ]
    found = {"accuracy": 100 * float(np.mean(known))} if known else {}
    targets, predictions = [row["target"] for row in best], [row["prediction"] for row in best]
    for metric in metric_fns:
        found.update(metric(targets, predictions))
    return found


def answers_of(task: seqio.Task) -> tuple[str, ...] | None:
    """Returns the label words of a task, which its postprocessor holds, or None if it has none."""
    # `task.postprocess_fn` is a method, which hides the keywords of the function.
    answers = getattr(task._postprocess_fn, "keywords", {}).get("label_classes")
    return tuple(answers) if answers else None


def add(task: seqio.Task, name: str | None = None, *, answers: Sequence[str] | str | None = None) -> seqio.Task:
    """Registers a text-to-text task once more, for rank classification.

    Both tasks have the same arguments. Answers end in EOS if the targets of the task do.

    Args:
      task: the registered task, whose metrics are functions of targets and predictions.
      name: the name of the new task. Default: the name of the task and `SUFFIX`.
      answers: the answers, or the feature of the task that holds an example's answers, string `[answers]`. Default: the
        label words of the task.

    Returns:
      The new task.

    Raises:
      UserError: the task has no label words, or is not a text-to-text task.
    """
    name, answers = name or task.name + SUFFIX, answers or answers_of(task)
    if answers is None:
        raise UserError(f"task {task.name}: its postprocessor has no label_classes. Give the answers.")
    stage = text_stage(task)
    if task_arguments.names(task.name):
        task_arguments.share(task.name, name)
    return seqio.TaskRegistry.add(
        name,
        source=task.source,
        preprocessors=[
            *task.preprocessors[:stage],
            functools.partial(rows_of_answers, answers=answers),
            *task.preprocessors[stage:],
        ],
        output_features=task.output_features,
        postprocess_fn=functools.partial(ranked, postprocess=task.postprocess_fn),
        metric_fns=[rank_classification(task.metric_fns)],
    )


def _add_all() -> None:
    for name in list(seqio.TaskRegistry.names()):
        task = seqio.TaskRegistry.get(name)
        if answers_of(task) is not None and task.metric_fns:
            add(task)
    add(seqio.TaskRegistry.get("super_glue_multirc_v102"), answers=FALSE_TRUE)


_add_all()
