"""The files of submissions, and the average of a benchmark."""

import json

import numpy as np
import pytest
import seqio

import data_tasks.shipped_tasks  # noqa: F401 (registers the tasks)
from data_tasks.downstream import glue, submissions
from t5x_like.data import benchmarks

EXAMPLES = [{"idx": np.int32(1), "id": b"q2"}, {"idx": np.int32(0), "id": b"q1"}]


@pytest.mark.parametrize(
    "task, split, predictions, file, rows",
    [
        ("glue_cola_classification", "test", [1, 0], "CoLA.tsv", ["0\t0", "1\t1"]),
        ("glue_rte_v002", "test", [1, -1], "RTE.tsv", ["0\tentailment", "1\tnot_entailment"]),
        ("glue_stsb_classification", "test", [5.3, 2.25], "STS-B.tsv", ["0\t2.250", "1\t5.000"]),
        ("glue_mnli_classification", "test_mismatched", [2, 1], "MNLI-mm.tsv", ["0\tneutral", "1\tcontradiction"]),
        ("glue_mnli_matched_v002", "test", [0, 0], "MNLI-m.tsv", ["0\tentailment", "1\tentailment"]),
    ],
)
def test_glue_submissions(task, split, predictions, file, rows):
    benchmark = seqio.TaskRegistry.get(task).benchmark
    assert split in benchmark.unlabeled_splits and "validation" not in benchmark.unlabeled_splits
    (written,) = benchmark.files(split, EXAMPLES, predictions, {}).items()
    assert written == (file, "\n".join(["index\tprediction", *rows, ""]))


def test_every_glue_task_belongs_to_the_benchmark():
    names = {f"glue_{task.name}_{form}" for task in glue.TASKS for form in ("classification", "v002")}
    assert all(seqio.TaskRegistry.get(name).benchmark.name == "GLUE" for name in names)


def test_other_formats():
    lines = submissions.jsonl(submissions.label_of(("false", "true")))(EXAMPLES, [1, 0], {}).splitlines()
    assert [json.loads(line) for line in lines] == [{"idx": 0, "label": "false"}, {"idx": 1, "label": "true"}]
    assert json.loads(submissions.squad_json(EXAMPLES, ["Paris", ""], {})) == {"q2": "Paris", "q1": ""}


def test_squad_predictions_are_those_of_its_scripts():
    benchmark = seqio.TaskRegistry.get("squad_v2_spans").benchmark
    assert (benchmark.submitted_splits, benchmark.unlabeled_splits) == (("validation",), ())
    # One window with the context "ab" at positions 1 and 2.
    window = {"id": b"q", "context": b"ab", "answers": [], "starts": [-1, 0, 1], "ends": [-1, 1, 2]}
    examples = [{**window, "max_context": [False, True, True], "inputs": [5, 6, 7]}]
    examples = [{name: np.array(x) if isinstance(x, list) else x for name, x in examples[0].items()}]
    for null_logit, text in ((0.0, "b"), (9.0, "")):
        outputs = {name: [np.array([null_logit, 1.0, 2.0])] for name in ("start_logits", "end_logits")}
        (written,) = benchmark.files("validation", examples, [""], outputs).items()
        assert written[0] == "predictions-v2.0.json" and json.loads(written[1]) == {"q": text}


def test_multirc_submission_nests_the_answers_of_questions():
    examples = [
        {"idx/paragraph": np.int32(paragraph), "idx/question": np.int32(question), "idx/answer": np.int32(answer)}
        for paragraph, question, answer in ((0, 1, 3), (0, 0, 1), (0, 0, 0), (2, 5, 9))
    ]
    benchmark = seqio.TaskRegistry.get("super_glue_multirc_v102").benchmark
    (text,) = benchmark.files("test", examples, [{"value": value} for value in (1, 0, -1, 1)], {}).values()
    first, second = [json.loads(line) for line in text.splitlines()]
    answers = [{"idx": 0, "label": 0}, {"idx": 1, "label": 0}]
    other = {"idx": 1, "answers": [{"idx": 3, "label": 1}]}
    assert first == {"idx": 0, "passage": {"questions": [{"idx": 0, "answers": answers}, other]}}
    assert second["idx"] == 2 and second["passage"]["questions"][0]["answers"] == [{"idx": 9, "label": 1}]


def test_record_submission_has_the_most_probable_entity_of_a_question():
    examples = [{"idx/query": np.int32(7), "entity": b"Paris"}, {"idx/query": np.int32(7), "entity": b"Rome"}]
    benchmark = seqio.TaskRegistry.get("super_glue_record_classification").benchmark
    outputs = {"probabilities": [np.array([0.6, 0.4]), np.array([0.3, 0.7])]}
    predictions = [{"entity": "Paris"}, {"entity": "Rome"}]
    assert benchmark.files("test", examples, predictions, outputs) == {"ReCoRD.jsonl": '{"idx": 7, "label": "Rome"}\n'}
    benchmark = seqio.TaskRegistry.get("super_glue_record_v102").benchmark
    generated = [{"value": "Paris"}, {"value": "Rome"}]
    assert benchmark.files("test", examples, generated, {}) == {"ReCoRD.jsonl": '{"idx": 7, "label": "Paris"}\n'}


@pytest.mark.parametrize(
    "task, file, labels",
    [
        ("boolq_classification", "BoolQ.jsonl", ["false", "true"]),
        ("copa_multiple_choice", "COPA.jsonl", [0, 1]),
        ("wsc_v102_simple_eval", "WSC.jsonl", ["False", "True"]),
        ("axg_v102", "AX-g.jsonl", ["entailment", "not_entailment"]),
    ],
)
def test_super_glue_submissions(task, file, labels):
    benchmark = seqio.TaskRegistry.get(f"super_glue_{task}").benchmark
    (written,) = benchmark.files("test", EXAMPLES, [1, 0], {}).items()
    assert written == (file, "".join(json.dumps({"idx": index, "label": labels[index]}) + "\n" for index in (0, 1)))


def test_average_is_the_mean_over_tasks_of_the_mean_over_metrics():
    """As in the t5 package; by hand: MRPC and MNLI count once each."""
    values = {
        **{"cola": {"m": 60.0}, "sst2": {"a": 90.0}, "mrpc": {"f1": 80.0, "a": 70.0}, "stsb": {"p": 80.0, "s": 84.0}},
        **{"qqp": {"f1": 70.0, "a": 90.0}, "qnli": {"a": 91.0}, "rte": {"a": 62.0}},
        **{"mnli_matched": {"a": 84.0}, "mnli_mismatched": {"a": 86.0}, "wnli": {"a": 0.0}},
    }
    found = [(seqio.TaskRegistry.get(f"glue_{name}_v002").benchmark, metrics) for name, metrics in values.items()]
    expected = (60 + 90 + 75 + 82 + 80 + 85 + 91 + 62) / 8
    assert benchmarks.averages(found) == {"GLUE": pytest.approx(expected)}
    assert benchmarks.averages(found[1:]) == {}  # CoLA is missing
