"""In-context evaluation: prompts of each form, the choice and truncation of shots, and predictions."""

import json

import pytest
import seqio
import tensorflow as tf

from data_tasks.downstream import few_shot
from data_tasks.downstream.few_shot_forms import FORMS, Form
from t5x_like.data.records import Record
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.data.seqio_feed.task_rows import TaskRows
from t5x_like.errors import UserError
from t5x_like.vocabularies.shipped import PYTHON_DOCS_MODEL

TRAIN = [{"sentence": f"word{number} ", "label": number % 2, "idx": number} for number in range(6)]
VALIDATION = [{"sentence": f"query{number} ", "label": 1, "idx": number} for number in range(3)]
RANK, GENERATED = "glue_sst2_v002_few_shot_rank", "glue_sst2_v002_few_shot"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("sst2")
    for split, rows in (("train", TRAIN), ("validation", VALIDATION)):
        (path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(directory, task=GENERATED, length=200, split="validation", **arguments):
    source = SeqIOSource(
        mixture_or_task_name=task,
        split=split,
        batch_size=2,
        task_feature_lengths={"inputs": length, "targets": 16},
        task_arguments={"data_dir": directory, **arguments},
        vocabulary_path=str(PYTHON_DOCS_MODEL),
    )
    return list(source.examples(100))


def prompts(*arguments, **options):
    return [row["inputs_pretokenized"].decode() for row in read(*arguments, **options)]


def test_zero_shot_prompt_and_its_target(directory):
    rows = read(directory)
    assert [row["inputs_pretokenized"].decode() for row in rows] == [
        f"Review: query{number}\nSentiment:" for number in range(3)
    ]
    vocabulary = seqio.TaskRegistry.get(GENERATED).output_features["inputs"].vocabulary
    whole = vocabulary.encode("Review: query0\nSentiment: positive")
    assert [*rows[0]["inputs"], *rows[0]["targets"]] == whole
    assert rows[0]["targets"].tolist() == whole[len(vocabulary.encode("Review: query0\nSentiment:")) :]
    assert rows[0]["targets_pretokenized"] == b"positive"


def test_shots_are_drawn_from_the_training_split_with_a_seed(directory):
    words = {row["sentence"].strip(): ("negative", "positive")[row["label"]] for row in TRAIN}
    found = prompts(directory, shots=2)
    drawn = []
    for number, prompt in enumerate(found):
        *shots, last = prompt.split("\n\n")
        assert last == f"Review: query{number}\nSentiment:"
        for shot in shots:
            word = shot.removeprefix("Review: ").split("\n")[0]
            assert shot == f"Review: {word}\nSentiment: {words[word]}"
            drawn.append(word)
    assert sorted(drawn) == sorted(words)  # without replacement
    assert prompts(directory, shots=2) == found != prompts(directory, shots=2, shots_seed=1)
    with pytest.raises(UserError, match="shots_split='dev' is not a split of glue_sst2_v002. Give one of train, vali"):
        read(directory, shots=1, shots_split="dev")
    with pytest.raises(UserError, match="shots=-1 is negative"):
        read(directory, shots=-1)


def test_given_rows_have_the_shots_of_examples_with_their_numbers(directory):
    records = [Record(1, {"sentence": row["sentence"]}, number) for number, row in enumerate(VALIDATION * 3)]
    source = SeqIOSource(
        mixture_or_task_name=GENERATED,
        batch_size=2,
        task_feature_lengths={"inputs": 200, "targets": 16},
        task_arguments={"data_dir": directory, "shots": 2},
        vocabulary_path=str(PYTHON_DOCS_MODEL),
    )
    rows = TaskRows(source, "rows.jsonl", records)
    found = [example["inputs_pretokenized"].decode() for _, example in rows.examples(0, len(records))]
    assert found[: len(VALIDATION)] == prompts(directory, shots=2) and len(found) == len(records)
    part = [example["inputs_pretokenized"].decode() for _, example in rows.examples(4, 6)]
    assert part == found[4:6]  # in any window


def test_long_prompts_lose_whole_shots_the_oldest_first(directory):
    full = read(directory, shots=3)
    vocabulary = seqio.TaskRegistry.get(GENERATED).output_features["inputs"].vocabulary
    shots = full[0]["inputs_pretokenized"].decode().split("\n\n")
    length = len(vocabulary.encode("\n\n".join(shots[1:])))
    assert length < len(full[0]["inputs"])
    short = read(directory, shots=3, length=length)[0]
    assert short["inputs_pretokenized"].decode() == "\n\n".join(shots[1:])
    assert len(short["inputs"]) == length
    (end,) = {tuple(row["inputs"][-3:].tolist()) for row in full}
    shortest = read(directory, shots=3, length=3)[0]
    assert shortest["inputs"].tolist() == list(end)  # the example itself keeps its end
    assert shortest["targets"].tolist() == full[0]["targets"].tolist()


def test_description_stays_in_front(directory):
    base = seqio.TaskRegistry.get("glue_sst2_v002")
    form = Form(description="Judge the reviews.", words=(("positive", "good"), ("negative", "bad")))
    few_shot._add(base, "tests_described", {"own": form}, ["negative", "positive"])
    try:
        rows = read(directory, task="tests_described", shots=3, length=40)
        pieces = rows[0]["inputs_pretokenized"].decode().split("\n\n")
        assert pieces[0] == "Judge the reviews." and 1 < len(pieces) < 5
        assert pieces[-1] == "sst2 sentence: query0 \nanswer:"
        assert [row["targets_pretokenized"] for row in rows[:2]] == [b"bad", b"good"]
        task = seqio.TaskRegistry.get("tests_described")
        found = [
            task.postprocess_fn(t, example=row, is_target=True) for t, row in zip(("bad", "good"), rows, strict=False)
        ]
        assert [(row["correct"], row["target"], row["prediction"]) for row in found] == [(False, 1, 0), (True, 1, 1)]
        with pytest.raises(UserError, match="form='other' is not a form of tests_described. Give one of own"):
            read(directory, task="tests_described", form="other")
    finally:
        seqio.TaskRegistry.remove("tests_described")


def test_rank_rows_have_the_same_shots(directory):
    rows = read(directory, task=RANK, shots=2)
    assert len(rows) == 6
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert first["inputs_pretokenized"] == second["inputs_pretokenized"]
        assert [row["targets_pretokenized"] for row in (first, second)] == [b"negative", b"positive"]
    task = seqio.TaskRegistry.get(RANK)
    (metric,) = task.metric_fns
    targets = [task.postprocess_fn(row["targets_pretokenized"].decode(), example=row, is_target=True) for row in rows]
    assert metric(targets, [-2, -1, -2, -1, -1, -2])["accuracy"] == pytest.approx(200 / 3)


def test_predictions_end_with_the_line():
    assert few_shot.first_line("\n positive \n\nReview: x") == "positive" and few_shot.first_line(" \n") == ""
    task = seqio.TaskRegistry.get(GENERATED)
    assert task.postprocess_fn(" positive\n\nReview: a", example={}, is_target=False) == 1
    assert task.postprocess_fn("positive", example={}, is_target=True) == 1


@pytest.mark.parametrize(
    ("task", "form", "inputs", "prompt"),
    [
        ("glue_sst2_v002", "calibrate", "sst2 sentence: a film ", "Review: a film\nSentiment:"),
        ("parallel_text", "gpt2", "translate English to German: a b", "a b ="),
        (
            "parallel_text",
            "gpt3_zero_shot",
            "translate English to German: a b",
            "Q: What is the German translation of a b A:",
        ),
        ("xsum", "gpt2", "summarize: an article", "an article\nTL;DR:"),
        ("trivia_qa_closed_book", "gpt3", "trivia_qa question: who?", "Q: who?\nA:"),
        ("squad_v010_allanswers", "gpt3", "question: who ? context: He .", "Background: He .\n\nQ: who ?\n\nA:"),
        ("glue_rte_v002", "gpt3", "rte sentence1: P. sentence2: H.", "P.\nquestion: H. True or False?\nanswer:"),
        ("super_glue_boolq_v102", "gpt3", "boolq passage: P. question: is it", "P.\nquestion: is it?\nanswer:"),
        (
            "super_glue_cb_v102",
            "gpt3",
            "cb hypothesis: h premise: P.",
            "P.\nquestion: h. true, false, or neither?\nanswer:",
        ),
    ],
)
def test_forms(task, form, inputs, prompt):
    written = FORMS[task][form]
    for pattern, replacement in written.inputs:
        inputs = tf.strings.regex_replace(inputs, pattern, replacement).numpy().decode()
    assert inputs + written.answer_prefix.rstrip() == prompt
    assert f"{task}_few_shot" in seqio.TaskRegistry.names()


def test_words_of_a_form_are_distinct():
    for forms in FORMS.values():
        for form in forms.values():
            assert len({word for _, word in form.words}) == len(form.words)
            assert form.gap
