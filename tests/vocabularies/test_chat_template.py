"""Chat templates render and encode conversations as transformers does, and refuse what it refuses."""

import json

import chat_templates
import pytest
import small_models
from chat_templates import CONVERSATION, TEMPLATES

from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.loading import open_model
from t5x_like.vocabularies.chat_template import ChatTemplate, is_conversation
from t5x_like.vocabularies.from_folder import from_folder

REFUSING = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}ok"


@pytest.mark.parity
@pytest.mark.parametrize("as_file", [False, True], ids=["config", "jinja"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_and_ids_equal_those_of_transformers(name, as_file, tmp_path):
    transformers = pytest.importorskip("transformers", reason="compares with transformers (extra `parity`)")
    path = chat_templates.write(tmp_path, TEMPLATES[name], as_file=as_file)
    reference, template = transformers.AutoTokenizer.from_pretrained(path), ChatTemplate(path)
    for number in (2, 3, 4):
        messages = CONVERSATION[:number]
        for prompted in (False, True):
            expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompted)
            assert template.render(messages, add_generation_prompt=prompted) == expected
        if messages[-1]["role"] != "assistant":
            ids = reference.apply_chat_template(messages, add_generation_prompt=True)
            assert template.prompt(messages) == list(ids)


def test_refusals_name_the_file_and_the_reason(tmp_path):
    template = ChatTemplate(chat_templates.write(tmp_path, REFUSING))
    assert template.render(CONVERSATION[1:]) == "ok"
    with pytest.raises(UserError, match="tokenizer_config.json: the chat template refuses the messages: System role"):
        template.render(CONVERSATION)
    with pytest.raises(UserError, match="is not a valid chat template: .*Unexpected end of template"):
        ChatTemplate(chat_templates.write(tmp_path, "{% if messages %}")).render(CONVERSATION)
    with pytest.raises(UserError, match="refuses the messages: .*unsafe"):
        ChatTemplate(chat_templates.write(tmp_path, "{{ messages.__class__.__mro__ }}")).render(CONVERSATION)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UserError, match="has no chat template. Give the directory of a tokenizer that has one"):
        ChatTemplate(str(tmp_path))


def test_conversations_are_told_from_token_ids():
    assert is_conversation(CONVERSATION)
    assert not any(map(is_conversation, ("text", [], [1, 2], [{"content": "no role"}], {"role": "user"})))


def test_infer_reads_conversations(tmp_path):
    """A conversation is answered as its token ids are, whose BOS the row has already."""
    pytest.importorskip("jinja2", reason="needs the extra `chat`")
    path = tmp_path / "llama"
    small_models.write_llama(path)
    config = json.loads((path / "tokenizer_config.json").read_text())
    template = "{{ '<s>' }}{% for message in messages %}{{ message.role[0] + ':' + message.content + ';' }}{% endfor %}"
    (path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    messages = [{"role": "user", "content": "ab"}]
    ids = ChatTemplate(str(path)).prompt(messages)
    assert ids[0] == 1 and 1 not in ids[1:]
    opened = open_model(str(path), decoding=Decoding(max_length=6))
    (expected,) = opened.predict([{"inputs": ids[1:]}])
    (answer,) = opened.predict([{"inputs": messages}])
    assert answer["prediction"] == from_folder(str(path)).decode(expected["prediction"])
    with pytest.raises(UserError, match="texts.jsonl:1: the last message is the assistant's"):
        opened.predict([{"inputs": [*messages, {"role": "assistant", "content": "c"}]}])
    with pytest.raises(UserError, match="texts.jsonl:1: .*tokenizer_config.json: the chat template refuses the mess"):
        opened.predict([{"inputs": [{"role": "user"}]}])
