"""The prediction files of SQuAD, which its official scripts score: an object from question ids to answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import data_tasks.downstream.squad  # noqa: F401 (registers the tasks)
from data_tasks.downstream.submissions import Example, Submission, attach, squad_json
from t5x_like.decoding.spans import Window, answers_of


def best_spans(examples: Sequence[Example], predictions: Sequence[Any], outputs: Mapping[str, Sequence[Any]]) -> str:
    """Writes the best span over the windows of each question."""
    return _write_spans(examples, outputs, may_be_unanswerable=False)


def best_spans_or_none(
    examples: Sequence[Example], predictions: Sequence[Any], outputs: Mapping[str, Sequence[Any]]
) -> str:
    """Writes the best span over the windows of each question, or no text if the question seems unanswerable."""
    return _write_spans(examples, outputs, may_be_unanswerable=True)


def _write_spans(examples, outputs, may_be_unanswerable):
    windows = [Window.of(example, example["id"].decode("utf-8")) for example in examples]
    answers = answers_of(windows, outputs)
    texts = {
        question: "" if may_be_unanswerable and answer.null_score > answer.score else answer.text
        for question, answer in answers.items()
    }
    return squad_json([{"id": question} for question in texts], list(texts.values()), {})


for _version, _forms in (
    ("1.1", {"squad_v1_spans": best_spans, "squad_v010_allanswers": squad_json}),
    ("2.0", {"squad_v2_spans": best_spans_or_none, "squad_v2_allanswers": squad_json}),
):
    for _name, _write in _forms.items():
        _submission = Submission(
            name=f"SQuAD {_version}",
            group=None,
            groups=(),
            file_names={"validation": f"predictions-v{_version}.json"},
            write=_write,
            labeled_splits=("validation",),
        )
        attach(_name, _submission)
