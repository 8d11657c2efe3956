"""The average of SuperGLUE and its submissions (https://super.gluebenchmark.com, `FAQ`), for all forms of its tasks."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import seqio

from data_tasks.downstream.submissions import Example, Submission, Writer, attach, jsonl, label_of, lines
from data_tasks.downstream.super_glue import FOLDERS
from data_tasks.downstream.super_glue_files import LABELS

# The diagnostic datasets do not count.
GROUPS = ("BoolQ", "CB", "COPA", "MultiRC", "ReCoRD", "RTE", "WiC", "WSC")
_LOWER_CASE = ("false", "true")
# The submitted values of tasks that do not submit the names of their labels.
_VALUES = {"boolq": _LOWER_CASE, "wic": _LOWER_CASE, "copa": (0, 1)}


def multirc(examples: Sequence[Example], predictions: Sequence[Mapping[str, Any]], outputs: Any) -> str:
    """Writes the labels of answers, nested in their questions and paragraphs."""
    rows = sorted(
        (*(int(example[f"idx/{level}"]) for level in ("paragraph", "question", "answer")), max(found["value"], 0))
        for example, found in zip(examples, predictions, strict=True)
    )
    return lines(
        {
            "idx": paragraph,
            "passage": {
                "questions": [
                    {"idx": question, "answers": [{"idx": row[2], "label": row[3]} for row in answers]}
                    for question, answers in itertools.groupby(questions, lambda row: row[1])
                ]
            },
        }
        for paragraph, questions in itertools.groupby(rows, lambda row: row[0])
    )


def record_text(examples: Sequence[Example], predictions: Sequence[Mapping[str, Any]], outputs: Any) -> str:
    """Writes the first generated answer of each question."""
    answers: dict[int, str] = {}
    for example, found in zip(examples, predictions, strict=True):
        answers.setdefault(int(example["idx/query"]), found["value"])
    return lines({"idx": query, "label": answers[query]} for query in sorted(answers))


def record_entities(
    examples: Sequence[Example], predictions: Sequence[Mapping[str, Any]], outputs: Mapping[str, Sequence[Any]]
) -> str:
    """Writes the entity with the highest probability of label 1 of each question."""
    best: dict[int, tuple[float, str]] = {}
    for example, found, probabilities in zip(examples, predictions, outputs["probabilities"], strict=True):
        query, probability = int(example["idx/query"]), float(probabilities[1])
        if query not in best or probability > best[query][0]:
            best[query] = probability, found["entity"]
    return lines({"idx": query, "label": best[query][1]} for query in sorted(best))


def _writer(task: str, form: str) -> Writer:
    if task == "multirc":
        return multirc
    if task == "record":
        return record_entities if form == "classification" else record_text
    return jsonl(label_of(_VALUES.get(task, LABELS[task])))


for _task, _folder in FOLDERS.items():
    for _form in ("classification", "v102", "multiple_choice", "v102_simple_eval"):
        if (_name := f"super_glue_{_task}_{_form}") in seqio.TaskRegistry.names():
            attach(
                _name,
                Submission(
                    name="SuperGLUE",
                    group=_folder if _folder in GROUPS else None,
                    groups=GROUPS,
                    file_names={"test": f"{_folder}.jsonl"},
                    write=_writer(_task, _form),
                ),
            )
