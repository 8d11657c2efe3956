"""Submissions to benchmarks: predictions for splits, such as those with secret labels, in the format of each benchmark.

`attach` states which benchmark a registered task belongs to. `t5x_like eval` reads the attribute `benchmark` of a task
for the average of the benchmark and for the files of a submission (`t5x_like.data.benchmarks.Benchmark`).
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio

Example = Mapping[str, Any]
"""The task features of an example by name."""

Writer = Callable[[Sequence[Example], Sequence[Any], Mapping[str, Sequence[Any]]], str]
"""A function from the examples, predictions and outputs of a split to the content of its file."""


@dataclasses.dataclass(frozen=True)
class Submission:
    """The place of a task in a benchmark; see `t5x_like.data.benchmarks.Benchmark`.

    Attributes:
      name: name of the benchmark.
      group: what the metrics of the task count for in the average; None if they do not count.
      groups: all groups of the average.
      file_names: split -> name of the file with its predictions.
      write: returns the content of the file.
      labeled_splits: splits whose labels are public.
    """

    name: str
    group: str | None
    groups: tuple[str, ...]
    file_names: Mapping[str, str]
    write: Writer
    labeled_splits: tuple[str, ...] = ()

    @property
    def submitted_splits(self) -> tuple[str, ...]:
        """The splits whose predictions are written to files."""
        return tuple(self.file_names)

    @property
    def unlabeled_splits(self) -> tuple[str, ...]:
        """The splits whose labels are secret."""
        return tuple(split for split in self.file_names if split not in self.labeled_splits)

    def files(
        self,
        split: str,
        examples: Sequence[Example],
        predictions: Sequence[Any],
        outputs: Mapping[str, Sequence[Any]],
    ) -> dict[str, str]:
        """Returns file name -> content for the predictions of a split."""
        return {self.file_names[split]: self.write(examples, predictions, outputs)}


def attach(task: str, submission: Submission) -> None:
    """States the benchmark of a registered task."""
    seqio.TaskRegistry.get(task).benchmark = submission


def tsv(values: Callable[[Any], Any]) -> Writer:
    """Returns a writer of GLUE's format: a line `index<tab>prediction` per example.

    Args:
      values: from a prediction to the submitted value.
    """

    def write(examples, predictions, outputs):
        lines = [f"{index}\t{value}\n" for index, value in _rows(examples, predictions, values)]
        return "index\tprediction\n" + "".join(lines)

    return write


def jsonl(values: Callable[[Any], Any]) -> Writer:
    """Returns a writer of SuperGLUE's format: an object `{"idx": …, "label": …}` per example.

    Args:
      values: from a prediction to the submitted value.
    """

    def write(examples, predictions, outputs):
        return lines({"idx": index, "label": value} for index, value in _rows(examples, predictions, values))

    return write


def lines(objects: Iterable[Any]) -> str:
    """Returns one JSON object per line."""
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in objects)


def squad_json(examples: Sequence[Example], predictions: Sequence[Any], outputs: Mapping[str, Sequence[Any]]) -> str:
    """Writes SQuAD's format: an object from the id of each question to the text of its answer."""
    answers = {_text(example["id"]): _text(answer) for example, answer in zip(examples, predictions, strict=True)}
    return json.dumps(answers, indent=2, ensure_ascii=False) + "\n"


def label_of(names: Sequence[Any]) -> Callable[[int], Any]:
    """Returns a function from the index of a label to its name.

    A generated text that is not a label has the index -1. The first label is submitted for it, because benchmarks
    reject other values.
    """
    return lambda index: names[max(int(index), 0)]


def score(value: float) -> str:
    """Returns the score of STS-B, limited to its range [0, 5]."""
    return f"{float(np.clip(value, 0.0, 5.0)):.3f}"


def _rows(examples, predictions, values):
    return sorted((int(example["idx"]), values(found)) for example, found in zip(examples, predictions, strict=True))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
