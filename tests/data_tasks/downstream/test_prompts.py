"""The task `prompts`: ids of the template, answers, long prompts, and errors by line."""

import json

import chat_templates
import gold_predictions
import pytest
from chat_templates import CHATML

from t5x_like.errors import UserError
from t5x_like.vocabularies.chat_template import ChatTemplate


@pytest.fixture
def examples(tmp_path):
    """Returns a function that reads lines as examples with a maximum length of prompts, and the template."""
    path, vocabulary = tmp_path / "prompts.jsonl", chat_templates.write(tmp_path, CHATML)

    def read(lines, length=128):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        arguments = {"train": str(path), "vocabulary_path": vocabulary}
        lengths = {"inputs": length, "targets": 16}
        return gold_predictions.read("prompts", "train", task_feature_lengths=lengths, task_arguments=arguments)

    return read, ChatTemplate(vocabulary)


def test_prompts_end_with_the_beginning_of_an_answer(examples):
    read, template = examples
    message = {"role": "user", "content": "a b"}
    lines = [{"prompt": "a b", "answer": "c"}, {"prompt": [message]}]
    first, second = read(lines)
    assert first["inputs"].tolist() == second["inputs"].tolist() == template.prompt([message])
    assert first["targets"].tolist() == template.encode("c") and second["targets"].tolist() == []
    short, _ = read(lines, length=5)
    assert short["inputs"].tolist() == template.prompt([message])[-5:]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text": "a"}, "field 'prompt' not found among 'text'. Add it"),
        ({"prompt": "a", "answer": 3}, "field 'answer': 3 is not a text. Give a string"),
        ({"prompt": [{"role": "assistant", "content": "a"}]}, "the last message is the assistant's"),
    ],
)
def test_errors_name_the_file_and_the_line(line, message, examples):
    with pytest.raises(UserError, match=f"prompts.jsonl:2: {message}"):
        examples[0]([{"prompt": "a"}, line])
