"""The task `conversations`: three layouts of JSON lines, packed rows, errors by line, and a run that converses."""

import dataclasses
import json

import chat_templates
import gold_predictions
import pytest
from chat_templates import CHATML

from t5x_like.data.conversation_specs import CONVERSATION
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.errors import UserError
from t5x_like.vocabularies import conversations
from t5x_like.vocabularies.chat_template import ChatTemplate

USER, ANSWER = {"role": "user", "content": "Add.\n\n1, 2"}, {"role": "assistant", "content": "3"}
LINES = [
    {"messages": [USER, ANSWER, {"role": "user", "content": "?"}, ANSWER]},
    {"messages": [USER, ANSWER]},
    {"prompt": "Add.\n\n1, 2", "completion": "3", "id": 7},
    {"prompt": [USER], "completion": [ANSWER]},
    {"instruction": "Add.", "input": "1, 2", "output": "3"},
]


@pytest.fixture
def arguments(tmp_path):
    """Returns a function that writes lines to a file, and returns the arguments of the task."""
    path, vocabulary = tmp_path / "chats.jsonl", chat_templates.write(tmp_path, CHATML)

    def write(lines, **options):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {"train": str(path), "vocabulary_path": vocabulary, **options}

    return write


def examples(arguments):
    return gold_predictions.read(
        "conversations", "train", task_feature_lengths={"targets": 256}, task_arguments=arguments
    )


def test_layouts_give_the_same_tokens(arguments):
    first, *others = examples(arguments(LINES))
    template = ChatTemplate(arguments(LINES)["vocabulary_path"])
    expected = conversations.encode(template, [USER, ANSWER, LINES[0]["messages"][2]], [ANSWER], "assistant")
    assert first["targets"].tolist() == expected.ids and first["loss_mask"].tolist() == expected.loss_mask
    one_turn = conversations.encode(template, [USER], [ANSWER], "completion")
    for each in others:
        assert each["targets"].tolist() == one_turn.ids and each["loss_mask"].tolist() == one_turn.loss_mask
    assert sum(first["loss_mask"]) == 2 * sum(one_turn.loss_mask)
    (everything,) = examples(arguments(LINES[2:3], trained="all"))
    assert everything["loss_mask"].all() and everything["targets"].tolist() == one_turn.ids


def test_packed_rows_have_the_tokens_and_the_losses_of_unpacked_ones(arguments):
    options = {"mixture_or_task_name": "conversations", "split": "train", "task_arguments": arguments(LINES)}
    rows = {}
    for pack in (True, False):
        source = SeqIOSource(**options, task_feature_lengths={"targets": 128}, batch_size=1, pack=pack)
        batches = list(source.eval_batches(CONVERSATION, None, process_index=0, process_count=1))
        rows[pack] = [
            (int(token), int(weight), int(target))
            for batch in batches
            for token, weight, target, segment in zip(
                *(
                    batch[f"decoder_{name}"].ravel()
                    for name in ("input_tokens", "loss_weights", "target_tokens", "segment_ids")
                ),
                strict=True,
            )
            if segment
        ]
        assert len(batches) == (2 if pack else 5)
    assert rows[True] == rows[False] and sum(weight for _, weight, _ in rows[True]) > 0


def test_conversations_that_lose_their_end_are_counted(arguments):
    options = {"mixture_or_task_name": "conversations", "split": "train", "task_arguments": arguments(LINES)}
    lengths = sorted(len(each["targets"]) for each in examples(arguments(LINES)))
    source = SeqIOSource(**options, task_feature_lengths={"targets": lengths[-1]}, batch_size=1)
    assert source.text_problems(CONVERSATION) == []
    (cut,) = dataclasses.replace(source, task_feature_lengths={"targets": lengths[0]}).text_problems(CONVERSATION)
    assert cut.startswith(f"conversations: 1 of the first 5 examples have more than {lengths[0]} tokens in 'targets'")
    assert f"Increase targets in TASK_FEATURE_LENGTHS (up to {lengths[-1]})" in cut
    _, silent = dataclasses.replace(source, task_feature_lengths={"targets": 4}).text_problems(CONVERSATION)
    assert silent.startswith("conversations: 5 of the first 5 examples have no token with a loss among the first 4 ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            {"text": "a"},
            "fields 'text' are not a conversation. Give 'messages', 'prompt' and",
        ),
        ({"prompt": "a"}, "field 'completion' not found among 'prompt'. Add it"),
        ({"prompt": 3, "completion": "b"}, "field 'prompt': 3 is neither a text nor a list of messages"),
        (
            {"messages": [{"role": "user"}]},
            "field 'messages': message 0, {'role': 'user'}, is not an object with 'role'",
        ),
        ({"messages": [USER]}, "no token is trained with trained='assistant'. Give an answer of the assistant"),
        ({"instruction": "a"}, "field 'output' not found among 'instruction'. Add it"),
        ({"instruction": "a", "output": ""}, "field 'output': '' is not a text. Give the text of 'output'"),
    ],
)
def test_errors_name_the_file_and_the_line(line, message, arguments):
    with pytest.raises(UserError, match=f"chats.jsonl:2: {message}"):
        examples(arguments([LINES[0], line]))
