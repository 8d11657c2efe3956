"""The tasks of preferences: pairs with a margin, completions with a label and another completion, errors by line."""

import dataclasses
import json

import chat_templates
import gold_predictions
import pytest
from chat_templates import CHATML

from t5x_like.data.conversation_specs import LABELED_COMPLETION, PREFERENCE_PAIR, SCORED_PAIR
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError
from t5x_like.vocabularies import conversations
from t5x_like.vocabularies.chat_template import ChatTemplate

PAIR = {"prompt": "a", "chosen": "b", "rejected": [{"role": "assistant", "content": "cd"}]}


@pytest.fixture
def examples(tmp_path):
    """Returns a function that reads lines as the examples of a task, and the template."""
    path, vocabulary = tmp_path / "data.jsonl", chat_templates.write(tmp_path, CHATML)

    def read(task, lines):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        arguments = {"train": str(path), "vocabulary_path": vocabulary}
        lengths = {"targets": 128}
        return gold_predictions.read(task, "train", task_feature_lengths=lengths, task_arguments=arguments)

    return read, ChatTemplate(vocabulary)


def conversation(template, prompt, completion):
    prompt, completion = {"role": "user", "content": prompt}, {"role": "assistant", "content": completion}
    return conversations.encode(template, [prompt], [completion], "completion")


def check(row, number, expected):
    assert row[f"targets_{number}"].tolist() == expected.ids
    assert row[f"loss_mask_{number}"].tolist() == expected.loss_mask and 0 < sum(expected.loss_mask) < 9


def test_pairs_have_a_prompt_two_completions_and_a_margin(examples):
    read, template = examples
    first, second = read("preferences", [PAIR, {**PAIR, "margin": 2}])
    check(first, 0, conversation(template, "a", "b"))
    check(first, 1, conversation(template, "a", "cd"))
    assert first["margin"].tolist() == [0.0] and second["margin"].tolist() == [2.0]


def test_pairs_without_a_prompt_are_conversations_with_the_same_beginning(examples):
    read, template = examples
    user, first, second = (
        {"role": role, "content": text} for role, text in (("user", "a"), *[("assistant", x) for x in "bc"])
    )
    (row,) = read("preferences", [{"chosen": [user, first], "rejected": [user, second]}])
    check(row, 0, conversation(template, "a", "b"))
    check(row, 1, conversation(template, "a", "c"))


def test_completions_are_compared_with_those_of_the_next_line(examples):
    read, template = examples
    lines = [{"prompt": letter, "completion": 2 * letter, "label": letter == "x"} for letter in "xyz"]
    rows = read("completions", lines)
    for row, letter, following in zip(rows, "xyz", "yzx", strict=True):
        check(row, 0, conversation(template, letter, 2 * letter))
        check(row, 1, conversation(template, letter, 2 * following))
    assert [row["label"].tolist() for row in rows] == [[1], [0], [0]]


@pytest.mark.parametrize(
    ("task", "spec", "line"),
    [
        ("preferences", PREFERENCE_PAIR, PAIR),
        ("preferences", SCORED_PAIR, PAIR),
        ("completions", LABELED_COMPLETION, {"prompt": "a", "completion": "b", "label": True}),
    ],
)
def test_lost_ends_are_counted_beside_columns_without_a_length(task, spec, line, tmp_path):
    (path := tmp_path / "data.jsonl").write_text(2 * (json.dumps(line) + "\n"))
    arguments = {"train": str(path), "vocabulary_path": chat_templates.write(tmp_path, CHATML)}
    source = SeqIOSource(
        mixture_or_task_name=task,
        split="train",
        task_arguments=arguments,
        task_feature_lengths={"targets": 128},
        batch_size=1,
    )
    assert source.text_problems(spec) == []
    problems = dataclasses.replace(source, task_feature_lengths={"targets": 2}).text_problems(spec)
    assert problems[0].startswith(f"{task}: 2 of the first 2 examples have more than 2 tokens in 'targets_0'")


@pytest.mark.parametrize(
    ("task", "line", "message"),
    [
        ("preferences", {"prompt": "a", "chosen": "b"}, "field 'rejected' not found among 'prompt', 'chosen'. Add it"),
        (
            "preferences",
            {"chosen": PAIR["rejected"], "rejected": PAIR["rejected"]},
            "fields 'chosen' and 'rejected': with",
        ),
        ("preferences", {**PAIR, "margin": "big"}, "field 'margin': 'big' is not a number. Give a finite number"),
        ("completions", {"prompt": "a", "completion": "b"}, "field 'label': None is not true or false. Give true"),
    ],
)
def test_errors_name_the_file_and_the_line(task, line, message, examples):
    good = {**PAIR, "completion": "e", "label": True}
    with pytest.raises(UserError, match=f"data.jsonl:2: {message}"):
        examples[0](task, [good, line, good])
