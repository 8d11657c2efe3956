"""Tests of the SuperGLUE tasks: official records, TFDS, texts of both forms, postprocessors and metrics."""

import json

import gold_predictions
import numpy as np
import pytest

from data_tasks.downstream import super_glue, super_glue_files
from data_tasks.downstream import super_glue_text as texts
from data_tasks.metrics.record import record_of_entities
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

LENGTHS = {"inputs": 256, "targets": 32}

# Official records, and the expected text-to-text examples, as the t5 package makes them.
RECORDS = {
    "boolq": [
        {"question": "is it wet", "passage": "Water is wet.", "idx": 3, "label": True},
        {"question": "is it dry", "passage": "Water is wet.", "idx": 4, "label": False},
    ],
    "cb": [
        {"premise": "A b.", "hypothesis": "C d.", "label": label, "idx": number}
        for number, label in enumerate(["entailment", "contradiction", "neutral"])
    ],
    "copa": [
        {"premise": "It rained.", "choice1": "A.", "choice2": "B.", "question": question, "label": label, "idx": label}
        for question, label in (("cause", 0), ("effect", 1))
    ],
    "multirc": [
        {
            "idx": 7,
            "passage": {
                "text": "<b>Sent 1: </b>He ran.<br>Fast.",
                "questions": [
                    {
                        "question": "Who ran?",
                        "idx": 20,
                        "answers": [{"text": "He", "idx": 90, "label": 1}, {"text": "She", "idx": 91, "label": 0}],
                    },
                    {"question": "How?", "idx": 21, "answers": [{"text": "Fast", "idx": 92, "label": 1}]},
                ],
            },
        }
    ],
    "record": [
        {
            "idx": 5,
            "passage": {
                "text": "Ann met Bob.\n@highlight\nBob left\n@highlight\nEnd",
                "entities": [{"start": 0, "end": 2}, {"start": 8, "end": 10}, {"start": 24, "end": 26}],
            },
            "qas": [
                {"query": "@placeholder was met.", "idx": 30, "answers": [{"text": "Bob"}]},
                {"query": "They: @placeholder.", "idx": 31, "answers": [{"text": "Bob"}, {"text": "Ann"}]},
            ],
        }
    ],
    "rte": [{"premise": "A b.", "hypothesis": "C d.", "label": "not_entailment", "idx": 0}],
    "wic": [
        {
            **{"word": "bank", "sentence1": "A bänk bank.", "sentence2": "Banks fail.", "idx": 0, "label": True},
            **{"start1": 7, "end1": 11, "start2": 0, "end2": 5},
        }
    ],
    "axb": [{"sentence1": "A b.", "sentence2": "C d.", "label": "entailment", "logic": "x", "idx": 1}],
    "axg": [{"premise": "A b.", "hypothesis": "C d.", "label": "not_entailment", "idx": 1, "pair_id": 9}],
}
_RECORD = "entities: Ann, Bob passage: Ann met Bob. Bob left. End"
_MULTIRC = "paragraph: Sent 1: He ran. Fast."
EXPECTED = {
    "boolq": [
        ("boolq passage: Water is wet. question: is it wet", "True"),
        ("boolq passage: Water is wet. question: is it dry", "False"),
    ],
    "cb": [("cb hypothesis: C d. premise: A b.", label) for label in ("entailment", "contradiction", "neutral")],
    "copa": [
        ("copa choice1: A. choice2: B. premise: It rained. question: cause", "choice1"),
        ("copa choice1: A. choice2: B. premise: It rained. question: effect", "choice2"),
    ],
    "multirc": [
        (f"multirc question: Who ran? answer: He {_MULTIRC}", "True"),
        (f"multirc question: Who ran? answer: She {_MULTIRC}", "False"),
        (f"multirc question: How? answer: Fast {_MULTIRC}", "True"),
    ],
    "record": [
        (f"record query: @placeholder was met. {_RECORD}", "Bob"),
        (f"record query: They: @placeholder. {_RECORD}", "Ann"),
        (f"record query: They: @placeholder. {_RECORD}", "Bob"),
    ],
    "rte": [("rte hypothesis: C d. premise: A b.", "not_entailment")],
    "wic": [("wic sentence1: A bänk bank. sentence2: Banks fail. word: bank", "True")],
    "axb": [("rte hypothesis: C d. premise: A b.", "entailment")],
    "axg": [("rte hypothesis: C d. premise: A b.", "not_entailment")],
}
WSC = {
    "idx": 2,
    "label": True,
    "target": {"span1_text": "Tom", "span1_index": 2, "span2_text": "he", "span2_index": 4},
    "text": "Mitchell asked Tom if he could lend some money.",
}


@pytest.fixture
def official(tmp_path):
    """Returns a function that writes an official file of a task and reads a task from it."""

    def read(task, name, records, split="validation"):
        file = {"axb": "AX-b", "axg": "AX-g"}.get(name, {"validation": "val"}.get(split, split))
        folder = tmp_path / super_glue.FOLDERS[name]
        folder.mkdir(exist_ok=True)
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL), "data_dir": str(tmp_path)}
        return gold_predictions.read(task, split, task_feature_lengths=LENGTHS, task_arguments=arguments)

    return read


def perfect(name):
    expected = {"multirc": ["f1", "exact_match"], "record": ["em", "f1"], "axb": ["matthews_corrcoef"]}
    expected["cb"] = ["mean_3class_f1", "accuracy"]
    return dict.fromkeys(expected.get(name, ["accuracy"]), 100)


@pytest.mark.parametrize("name", RECORDS)
def test_texts_and_metrics_of_the_text_to_text_form(name, official):
    split = "test" if name in ("axb", "axg") else "validation"
    examples = official(f"super_glue_{name}_v102", name, RECORDS[name], split)
    found = [(row["inputs_pretokenized"].decode(), row["targets_pretokenized"].decode()) for row in examples]
    assert found == EXPECTED[name]
    if name == "axb":  # a correlation needs two examples
        return
    assert gold_predictions.evaluate(f"super_glue_{name}_v102", examples) == pytest.approx(perfect(name))


@pytest.mark.parametrize("name", ["boolq", "cb", "multirc", "rte", "wic", "axg"])
def test_metrics_of_the_classification_form(name, official):
    split = "test" if name == "axg" else "validation"
    examples = official(f"super_glue_{name}_classification", name, RECORDS[name], split)
    assert len(examples) == len(EXPECTED[name])
    labels = super_glue_files.LABELS[name]
    assert [labels[row["targets"].item()] for row in examples] == [label for _, label in EXPECTED[name]]
    task = f"super_glue_{name}_classification"
    assert gold_predictions.evaluate(task, examples) == pytest.approx(perfect(name))


def decoded(ids):
    """Returns the texts of an example; each ends in EOS in the template of T5."""
    from t5x_like.vocabularies.shipped import python_docs

    vocabulary, ends = python_docs(), np.flatnonzero(ids == 1)
    return [vocabulary.decode(part.tolist()).strip() for part in np.split(ids, ends + 1)[:-1]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("boolq", ["is it wet", "Water is wet."]),
        ("multirc", ["Sent 1: He ran. Fast.", "Who ran? He"]),
        ("record", ["Ann met Bob. Bob left. End", "Ann was met."]),
    ],
)
def test_texts_of_the_classification_form(name, expected, official):
    row = official(f"super_glue_{name}_classification", name, RECORDS[name])[0]
    assert decoded(row["inputs"]) == expected


def test_the_words_of_wic_and_the_spans_of_wsc_are_marked():
    import tensorflow as tf

    assert texts.mark_characters(tf.constant("A bänk bank."), 7, 11).numpy().decode() == "A bänk *bank*."
    row = {"text": "This is a test sentence .", "span1_text": "test", "span2_text": "This"}
    row |= {"span1_index": 3, "span2_index": 0}
    assert texts.mark_spans({k: tf.constant(v) for k, v in row.items()}) == b"# This # is a * test * sentence ."
    row = {**WSC["target"], "text": "Is Tom? (he) he", "span1_text": "Tom?", "span1_index": 1, "span2_text": "(he)"}
    row["span2_index"] = 2
    assert texts.mark_spans({k: tf.constant(v) for k, v in row.items()}) == b"Is * Tom? * # (he) # he"


def test_copa_has_a_sequence_per_choice(official):
    first, second = official("super_glue_copa_multiple_choice", "copa", RECORDS["copa"])
    assert decoded(first["inputs_0"]) == ["It rained. What was the cause of this?", "A."]
    assert decoded(first["inputs_1"]) == ["It rained. What was the cause of this?", "B."]
    assert decoded(second["inputs_1"]) == ["It rained. What happened as a result?", "B."]
    assert first["token_types_0"].shape == first["inputs_0"].shape
    assert [row["targets"].tolist() for row in (first, second)] == [[0], [1]]
    assert gold_predictions.evaluate("super_glue_copa_multiple_choice", [first, second]) == {"accuracy": 100}


# ---- WSC -------------------------------------------------------------------------------------------------------------


def test_wsc_asks_for_the_referent(official):
    records = [WSC, {**WSC, "label": False, "target": {**WSC["target"], "span1_text": "Mitchell", "span1_index": 0}}]
    examples = official("super_glue_wsc_v102_simple_eval", "wsc", records)
    inputs = b"wsc: Mitchell asked Tom if *he* could lend some money."
    assert [row["inputs_pretokenized"] for row in examples] == [inputs] * 2
    assert [row["targets_pretokenized"] for row in examples] == [b"Tom", b"Mitchell"]
    # A model that names the noun of the second example, to which the pronoun does not refer, is wrong there.
    assert gold_predictions.evaluate("super_glue_wsc_v102_simple_eval", examples) == {"accuracy": 50}
    (row,) = official("super_glue_wsc_v102_simple_train", "wsc", records, "train")
    assert row["targets_pretokenized"] == b"Tom"
    (row, _) = official("super_glue_wsc_classification", "wsc", records)
    assert decoded(row["inputs"]) == ["Mitchell asked * Tom * if # he # could lend some money."]


@pytest.mark.parametrize(
    ("prediction", "referent", "expected"),
    [
        ("the Bob", "bob", 1),
        ("fuzzy bunny", "bunny", 1),
        ("Bob", "Bob's hat", 0),
        ("Ann", "Bob", 0),
        ("", "Bob", -1),
        ("the", "the bunny", -1),
    ],
)
def test_referents_are_compared_as_in_t5(prediction, referent, expected):
    example = {"targets_pretokenized": referent.encode(), "label": np.int32(1)}
    assert texts.wsc_simple(prediction, example=example) == expected
    assert texts.wsc_simple(referent, example=example, is_target=True) == 1


@pytest.mark.parametrize(
    ("text", "pronoun", "index", "expected"),
    [
        ('The boy threw him over. John laughed. "Good for him," he said. ', "him", 8, '"Good for *him* ," he said.'),
        ("When they had eventually calmed down a bit , they might use it , but no", "it", 11, "use *it* , but no"),
    ],
)
def test_two_texts_of_wsc_whose_index_is_wrong(text, pronoun, index, expected, official):
    target = {"span1_text": "x", "span1_index": 0, "span2_text": pronoun, "span2_index": index}
    (row,) = official("super_glue_wsc_v102_simple_eval", "wsc", [{**WSC, "text": text, "target": target}])
    assert row["inputs_pretokenized"].decode().endswith(expected)


def test_a_wrong_pronoun_index_is_an_error(official):
    record = {**WSC, "target": {**WSC["target"], "span2_index": 1}}
    with pytest.raises(UserError, match="span2_index is not the position of span2_text"):
        official("super_glue_wsc_v102_simple_eval", "wsc", [record])


def test_spans_of_wsc_are_corrected_as_in_tfds():
    record = {**WSC, "target": {**WSC["target"], "span1_text": "tom.", "span2_text": "He"}}
    (row,) = super_glue_files.wsc(record)
    assert (row["span1_text"], row["span2_text"]) == ("Tom", "he")


# ---- metrics and TFDS ------------------------------------------------------------------------------------------------


def test_multirc_groups_answers_by_question():
    example = {"idx/question": np.int32(20)}
    assert texts.multirc("True", example=example, is_target=True) == {"value": 1, "group": 20}
    assert texts.multirc("yes", example=example) == {"value": -1}
    assert texts.multirc([1], example=example) == {"value": 1}


def test_record_answers_with_the_most_probable_entity(official):
    task = "super_glue_record_classification"
    examples = official(task, "record", RECORDS["record"])
    assert [(row["entity"].decode(), row["targets"].item()) for row in examples] == [
        *(("Ann", 0), ("Bob", 1)),
        *(("Ann", 1), ("Bob", 1)),
    ]
    import seqio

    postprocess = seqio.TaskRegistry.get(task).postprocess_fn
    targets = [postprocess([0], example=row, is_target=True) for row in examples]
    aux_values = {"probabilities": [[0.6, 0.4], [0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]}
    assert record_of_entities(targets, None, aux_values) == {"em": 50, "f1": 50}  # Ann is wrong, Bob is right


def test_tfds_provides_the_data_without_data_dir():
    import tensorflow_datasets as tfds

    arguments = {"vocabulary_path": str(PYTHON_DOCS_MODEL)}
    tasks = ("super_glue_multirc_v102", "super_glue_multirc_classification", "super_glue_record_v102")
    with tfds.testing.mock_data(num_examples=2):
        for task in (*tasks, "super_glue_record_classification", "super_glue_copa_multiple_choice"):
            assert gold_predictions.read(task, "train", task_feature_lengths=LENGTHS, task_arguments=arguments), task
    builders = tfds.text.super_glue.SuperGlue.builder_configs
    for name, config in builders.items():
        if name != "wsc.fixed":
            labels = None if name == "record" else tuple(config.label_classes)
            assert super_glue_files.LABELS.get(name) == labels, name
            columns = {column for column in super_glue_files.COLUMNS[name] if not column.startswith("idx")}
            assert columns == {*config.features}, name


def test_records_of_another_benchmark_are_an_error(official):
    with pytest.raises(UserError, match=r"val.jsonl:1: key 'questions' not found. Give the files of the benchmark"):
        official("super_glue_multirc_v102", "multirc", [{"passage": {"text": "x"}, "idx": 0}])
