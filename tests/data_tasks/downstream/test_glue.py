"""Tests of the GLUE tasks: official files, TFDS, both forms, and metrics of perfect predictions."""

import json

import gold_predictions
import numpy as np
import pytest

from data_tasks.downstream import glue
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

LENGTHS = {"inputs": 128, "targets": 32}
BY_NAME = {task.name: task for task in glue.TASKS}


def read(task, split="validation", number=100, data_dir=None):
    arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL), "data_dir": data_dir and str(data_dir)}
    return gold_predictions.read(task, split, number, task_feature_lengths=LENGTHS, task_arguments=arguments)


# ---- real files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["classification", "v002"])
@pytest.mark.parametrize(
    ("name", "split", "rows"),
    [("sst2", "validation", 872), ("mrpc", "validation", 408), ("cola", "validation", 1043)]
    + [("stsb", "validation", 1500), ("rte", "validation", 277), ("qnli", "validation", 5463)],
)
def test_perfect_predictions_score_100_on_real_files(test_data, name, split, rows, form):
    task = f"glue_{name}_{form}"
    examples = read(task, split, number=300, data_dir=test_data / "glue")
    scores = gold_predictions.evaluate(task, examples)
    assert scores == pytest.approx({metric.__name__: 100 for metric in BY_NAME[name].metrics})
    import seqio

    assert seqio.TaskRegistry.get(task).num_input_examples(split) == rows


def test_training_and_test_files_are_read(test_data):
    import seqio

    read("glue_cola_classification", "train", 1, data_dir=test_data / "glue" / "CoLA")
    assert seqio.TaskRegistry.get("glue_cola_classification").num_input_examples("train") == 8551
    (row,) = read("glue_mrpc_v002", "test", 1, data_dir=test_data / "glue" / "MRPC")
    assert row["targets_pretokenized"] == b"<unk>"
    assert row["inputs_pretokenized"].startswith(b"mrpc sentence1: PCCW 's chief operating officer , ")
    examples = read("glue_ax_classification", "test", 5, data_dir=test_data / "glue" / "diagnostic")
    assert [row["targets"].tolist() for row in examples] == [[-1]] * 5
    assert gold_predictions.evaluate("glue_ax_classification", examples) == {}


# ---- rows of each task -----------------------------------------------------------------------------------------------

PAIR = ("A man sleeps.", "He is awake.")
# As in the docstrings of the t5 package: benchmark, names of the texts in alphabetical order, and the label word.
TEXTS = {
    "cola": "cola sentence: A man sleeps.",
    "sst2": "sst2 sentence: A man sleeps.",
    "mrpc": "mrpc sentence1: A man sleeps. sentence2: He is awake.",
    "qqp": "qqp question1: A man sleeps. question2: He is awake.",
    "stsb": "stsb sentence1: A man sleeps. sentence2: He is awake.",
    "mnli": "mnli hypothesis: He is awake. premise: A man sleeps.",
    "mnli_matched": "mnli hypothesis: He is awake. premise: A man sleeps.",
    "mnli_mismatched": "mnli hypothesis: He is awake. premise: A man sleeps.",
    "qnli": "qnli question: A man sleeps. sentence: He is awake.",
    "rte": "rte sentence1: A man sleeps. sentence2: He is awake.",
    "wnli": "wnli sentence1: A man sleeps. sentence2: He is awake.",
    "ax": "mnli hypothesis: He is awake. premise: A man sleeps.",
}
ALL_LABELS = {
    "cola": ["unacceptable", "acceptable"],
    "sst2": ["negative", "positive"],
    "mrpc": ["not_equivalent", "equivalent"],
    "qqp": ["not_duplicate", "duplicate"],
    "stsb": ["3.8", "2.6", "0.0"],
    "qnli": ["entailment", "not_entailment"],
    "rte": ["entailment", "not_entailment"],
    "wnli": ["not_entailment", "entailment"],
}
ENTAILMENT = ["entailment", "neutral", "contradiction"]


@pytest.fixture
def tfds_rows(tmp_path):
    """Returns a function that writes a file with a row per label of a task, in the schema of TFDS."""

    def write(name, split):
        task = BY_NAME[name]
        labels = [3.8, 2.5001, 0.0] if name == "stsb" else range(len(task.labels))
        texts = dict(zip(task.texts, PAIR, strict=False))
        rows = [{**texts, "label": label, "idx": 10 + number} for number, label in enumerate(labels)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path

    return write


@pytest.mark.parametrize("name", TEXTS)
def test_texts_labels_and_metrics_of_each_task(name, tfds_rows):
    split = "test" if name == "ax" else "validation_mismatched" if name == "mnli" else "validation"
    directory = tfds_rows(name, split)
    examples = read(f"glue_{name}_v002", split, data_dir=directory)
    assert {row["inputs_pretokenized"].decode() for row in examples} == {TEXTS[name]}
    labels = ALL_LABELS.get(name, ENTAILMENT)
    assert [row["targets_pretokenized"].decode() for row in examples] == labels
    assert [row["idx"].item() for row in examples] == [10, 11, 12][: len(labels)]
    metrics = {metric.__name__: 100 for metric in BY_NAME[name].metrics}
    assert gold_predictions.evaluate(f"glue_{name}_v002", examples) == pytest.approx(metrics)
    examples = read(f"glue_{name}_classification", split, data_dir=directory)
    expected = [[3.8], [2.5001], [0.0]] if name == "stsb" else [[index] for index in range(len(labels))]
    np.testing.assert_allclose([row["targets"] for row in examples], expected, rtol=1e-6)
    assert examples[0]["targets"].dtype == ("float32" if name == "stsb" else "int32")
    assert gold_predictions.evaluate(f"glue_{name}_classification", examples) == pytest.approx(metrics)


@pytest.mark.parametrize("name", ["mrpc", "qqp", "stsb"])
def test_both_orders_of_a_pair_are_trained_and_one_is_evaluated(name, tfds_rows):
    import seqio

    task, swapped = f"glue_{name}_classification", f"glue_{name}_swapped_classification"
    directory = tfds_rows(name, "train")
    (first, *_), (second, *_) = (read(each, "train", data_dir=directory) for each in (task, swapped))
    texts = [row["inputs"].tolist() for row in (first, second)]
    assert texts[0] != texts[1] and sorted(texts[0]) == sorted(texts[1])
    assert first["targets"] == second["targets"]
    mixture = seqio.MixtureRegistry.get(f"glue_{name}_both_orders_classification")
    assert [(each.name, mixture.get_rate(each)) for each in mixture.tasks] == [(task, 1.0), (swapped, 1.0)]
    assert seqio.TaskRegistry.get(swapped).splits == ("train",)


def test_splits_and_labels_are_those_of_tfds():
    import tensorflow_datasets as tfds

    builders = tfds.text.glue.Glue.builder_configs
    assert set(builders) == set(BY_NAME)
    for name, config in builders.items():
        task = BY_NAME[name]
        assert task.labels == (tuple(config.label_classes) if config.label_classes else None), name
        assert set(task.texts) == set(config.text_features), name


def test_tfds_provides_the_data_without_data_dir():
    import tensorflow_datasets as tfds

    with tfds.testing.mock_data(num_examples=2):
        for name in ("stsb", "mnli"):
            rows = [read(f"glue_{name}_{form}", "train", 2) for form in ("classification", "v002")]
            assert [len(found) for found in rows] == [2, 2]


def test_missing_files_and_wrong_splits_raise(tmp_path):
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nx\t1\n")
    with pytest.raises(UserError, match=r"split 'validation': no file found in .* one of dev.tsv, validation.jsonl, v"):
        read("glue_sst2_classification", data_dir=tmp_path)
    with pytest.raises(UserError, match=r"has no split 'dev'. Give one of test_matched, test_mism"):
        read("glue_mnli_classification", "dev", data_dir=tmp_path)
    with pytest.raises(UserError, match=r"TFDS cannot read glue/sst2:2.0.0 .*'data_dir': …\}.*one of dev.tsv"):
        import seqio

        seqio.TaskRegistry.get("glue_sst2_v002").source._arguments.reset()
        source = seqio.TaskRegistry.get("glue_sst2_v002").source
        source.__dict__["_tfds"] = None  # any failure of TFDS
        try:
            source.get_dataset("validation")
        finally:
            del source.__dict__["_tfds"]


def test_incomplete_rows_of_qqp_are_skipped(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    (tmp_path / "dev.tsv").write_text(f"{header}0\t1\t2\ta?\tb?\t1\n1\t2\t3\tbroken\n2\t3\t4\tc?\td?\t0\n")
    examples = read("glue_qqp_classification", data_dir=tmp_path)
    assert [row["targets"].item() for row in examples] == [1, 0]
