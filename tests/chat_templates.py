"""Chat templates, and directories of a tokenizer of bytes that has one."""

import json

import pytest

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
LLAMA_3 = """\
{{ bos_token }}{% for message in messages %}
{% if loop.index0 > 3 %}{% break %}{% endif %}
{{ '<|im_start|>' + message['role'] + '<|im_end|>' + '\\n\\n' + message['content'] | trim + eos_token }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_end|>\\n\\n' }}{% endif %}"""
# A loop with state, JSON, and the block that marks answers.
TOOLS = """\
{%- set ns = namespace(count=0) %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
{%- set ns.count = ns.count + 1 %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>' }}{% generation %}{{ message.content }}{{ '<|im_end|>' }}{% endgeneration %}
{%- else %}{{- ns.count | string + ':' + message | tojson + '\\n' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"""
TEMPLATES = {"chatml": CHATML, "llama 3": LLAMA_3, "tools": TOOLS}
CONVERSATION = [
    {"role": "system", "content": "Answer “briefly”."},
    {"role": "user", "content": " What is <|im_end|> for?\n"},
    {"role": "assistant", "content": "It ends a message."},
    {"role": "user", "content": "Thanks <b>\u00e9</b>"},
]


def write(path, template, *, as_file=False):
    """Writes a tokenizer of bytes with special tokens and a chat template.

    Args:
      path: the directory, which exists.
      template: the template.
      as_file: whether the template is a file of its own.

    Returns:
      The directory as a string.
    """
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2", reason="needs the extra `chat`")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE({letter: n for n, letter in enumerate(alphabet)}, [])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    made.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    if as_file:
        (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    else:
        config["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return str(path)
