"""Encoded conversations have the ids of transformers, and exactly the tokens of the answers have a loss."""

import chat_templates
import pytest
from chat_templates import CHATML

from t5x_like.errors import UserError
from t5x_like.vocabularies import conversations
from t5x_like.vocabularies.chat_template import ChatTemplate

TURNS = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "a b"},
    {"role": "assistant", "content": " éx"},
    {"role": "user", "content": "c\n"},
    {"role": "assistant", "content": "d 🙂"},
]
MARKED = """\
{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
# Writes the thoughts of the last answer alone.
FORGETFUL = """\
{% for message in messages %}{{ '<|im_start|>' + ('T' if loop.last and message.role == 'assistant' else '') }}
{{- message.content }}{% endfor %}"""


def trained_texts(template, found):
    """Returns the text of each run of trained tokens."""
    runs, last = [], 0
    for token, trained in zip(found.ids, found.loss_mask, strict=True):
        if trained and not last:
            runs.append([])
        if trained:
            runs[-1].append(token)
        last = trained
    return [template._tokenizer.decode(run, skip_special_tokens=False) for run in runs]


@pytest.mark.parametrize(
    ("template", "trained", "expected"),
    [
        (CHATML, "assistant", [" éx<|im_end|>\n", "d 🙂<|im_end|>\n"]),
        (CHATML, "completion", ["d 🙂<|im_end|>\n"]),
        (MARKED, "assistant", [" éx<|im_end|>", "d 🙂<|im_end|>"]),
        (MARKED, "completion", ["d 🙂<|im_end|>\n"]),
        (FORGETFUL, "all", ["<|im_start|>s<|im_start|>a b<|im_start|> éx<|im_start|>c\n<|im_start|>Td 🙂"]),
    ],
)
def test_only_the_chosen_tokens_are_trained(template, trained, expected, tmp_path):
    template = ChatTemplate(chat_templates.write(tmp_path, template))
    found = conversations.encode(template, TURNS[:-1], TURNS[-1:], trained)
    assert found.ids == template.encode(template.render(TURNS))
    assert trained_texts(template, found) == expected


@pytest.mark.parametrize(
    ("template", "turns", "trained", "message"),
    [
        (FORGETFUL, TURNS, "assistant", "renders the first 2 messages differently when others follow, so that the ans"),
        (
            CHATML,
            TURNS[:4],
            "completion",
            "the completion begins with a message of the role 'user', which would be tra",
        ),
        (CHATML, TURNS[:2], "assistant", "no token is trained with trained='assistant'. Give an answer of the assista"),
        (CHATML, TURNS, "answers", "trained='answers': not one of assistant, completion, all. Give one of them"),
        (MARKED, [*TURNS, {"role": "assistant", "content": "\ufdd0"}], "assistant", r"have U\+FDD0 or U\+FDD1"),
    ],
)
def test_unsuitable_conversations_raise(template, turns, trained, message, tmp_path):
    template = ChatTemplate(chat_templates.write(tmp_path, template))
    with pytest.raises(UserError, match=message):
        conversations.encode(template, turns[:-1], turns[-1:], trained)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["marked", "tools"])
def test_masks_equal_those_of_transformers(name, tmp_path):
    transformers = pytest.importorskip("transformers", reason="compares with transformers (extra `parity`)")
    path = chat_templates.write(tmp_path, {"marked": MARKED, "tools": chat_templates.TEMPLATES["tools"]}[name])
    reference, template = transformers.AutoTokenizer.from_pretrained(path), ChatTemplate(path)
    for number in (3, 5):
        expected = reference.apply_chat_template(TURNS[:number], return_dict=True, return_assistant_tokens_mask=True)
        found = conversations.encode(template, TURNS[: number - 1], TURNS[number - 1 : number], "assistant")
        assert found.ids == list(expected["input_ids"])
        assert found.loss_mask == list(expected["assistant_masks"]) and sum(found.loss_mask) > 4
