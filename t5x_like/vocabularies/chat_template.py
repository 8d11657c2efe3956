"""Chat templates: the text and the token ids of a conversation, as `apply_chat_template` of transformers makes them."""

import datetime
import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.packages import require
from t5x_like.vocabularies import from_folder, tokenizer_classes
from t5x_like.vocabularies.tokenizer_folder import TokenizerFiles

Messages = Sequence[Mapping[str, Any]]
Span = tuple[int, int]
"""The first character of a part of a text, and the one after its last."""
_TEMPLATE, _DEFAULT = "chat_template", "default"
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
# Around the text of a block `{% generation %}` while its place is looked for: code points that are not characters.
_BEGIN, _END = "\ufdd0", "\ufdd1"


def is_conversation(value: Any) -> bool:
    """Returns whether a value of a record is a list of messages: objects with `role`."""
    return isinstance(value, list) and bool(value) and all(isinstance(x, dict) and "role" in x for x in value)


class ChatTemplate:
    """The template of a tokenizer, with its special tokens.

    Args:
      path: a Hugging Face directory with `chat_template.jinja`, or with `chat_template` in tokenizer_config.json.

    Raises:
      UserError: the directory has no template, or it is not valid.
    """

    def __init__(self, path: str | os.PathLike):
        self._files = TokenizerFiles(path)
        self._source, self._where = _read(self._files)
        self._special = {f"{role}_token": token for role, token in self._files.special_tokens().items()}

    @property
    def source(self) -> str:
        """The file of the template, for messages."""
        return self._where

    @property
    def marks_answers(self) -> bool:
        """Whether the template has blocks `{% generation %}`, which mark the text of the assistant."""
        return _GENERATION.search(self._source) is not None

    @functools.cached_property
    def _tokenizer(self) -> Any:
        # Special tokens in the text are the tokens, unlike in the texts of tasks.
        return from_folder.tokenizer(self._files)

    def render(self, messages: Messages, *, add_generation_prompt: bool = False) -> str:
        """Returns the text of a conversation.

        Args:
          messages: Messages with `role` and `content`, and what else the template reads.
          add_generation_prompt: Whether the text ends with what begins an answer.

        Raises:
          UserError: The template refuses the conversation.
        """
        return self._render(messages, add_generation_prompt=add_generation_prompt)

    def render_marked(self, messages: Messages) -> tuple[str, list[Span]]:
        """Returns the text of a conversation, and where the blocks `{% generation %}` of the template are in it.

        Raises:
          UserError: The template refuses the conversation.
        """
        pieces = re.split(f"([{_BEGIN}{_END}])", self._render(messages, marks=(_BEGIN, _END)))
        text, begin, spans = "", 0, []
        for piece in pieces:
            if piece == _BEGIN:
                begin = len(text)
            elif piece == _END:
                spans.append((begin, len(text)))
            else:
                text += piece
        return text, spans

    def _render(
        self, messages: Messages, *, add_generation_prompt: bool = False, marks: tuple[str, str] = ("", "")
    ) -> str:
        jinja2 = require("jinja2", "a chat template", extra="chat")
        values = {"messages": list(messages), "tools": None, "documents": None, **self._special}
        try:
            compiled = _compile(self._source, self._where, marks)
            return compiled.render(**values, add_generation_prompt=add_generation_prompt)
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{self._where}: the chat template refuses the messages: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Returns the token ids of a rendered text, in which special tokens are recognized and none are added."""
        return self.encode_spans(text)[0]

    def encode_spans(self, text: str) -> tuple[list[int], list[Span]]:
        """Returns the token ids of a rendered text, and the characters of each; see `encode`."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return found.ids, found.offsets

    def prompt(self, messages: Messages) -> list[int]:
        """Returns the token ids of a conversation and of what begins an answer; see `render`.

        Raises:
          UserError: The conversation ends with an answer, or the template refuses it.
        """
        if messages[-1].get("role") == "assistant":
            raise UserError("the last message is the assistant's. End with the message to answer, such as a user's.")
        return self.encode(self.render(messages, add_generation_prompt=True))


def _read(files: TokenizerFiles) -> tuple[str, str]:
    """Returns the template and the name of its file."""
    if files.has(tokenizer_classes.CHAT_TEMPLATE):
        return files.text(tokenizer_classes.CHAT_TEMPLATE), files.path(tokenizer_classes.CHAT_TEMPLATE)
    found = files.config.get(_TEMPLATE)
    if isinstance(found, list):  # several templates by name
        found = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}.get(_DEFAULT)
    if not isinstance(found, str):
        raise UserError(
            f"{files.directory}: has no chat template. Give the directory of a tokenizer that has one, as "
            f"{tokenizer_classes.CHAT_TEMPLATE} or as {_TEMPLATE!r} in {tokenizer_classes.CONFIG}."
        )
    return found, files.path(tokenizer_classes.CONFIG)


@functools.lru_cache(maxsize=8)
def _compile(source: str, where: str, marks: tuple[str, str]) -> Any:
    """Compiles a template in a sandbox, with the functions and the filter that transformers gives to templates.

    Args:
      source: The template.
      where: Its file, for messages.
      marks: What to write before and after the text of a block `{% generation %}`.
    """
    jinja2 = require("jinja2", "a chat template", extra="chat")
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block `{% generation %}`, which marks the text of the assistant."""

        tags = {"generation"}  # noqa: RUF012 (the interface of jinja2)

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

        def mark(self, caller):
            return marks[0] + caller() + marks[1]

    def refuse(message):
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None, **options: json.dumps(
        value, ensure_ascii=False, indent=indent, **options
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise UserError(f"{where}: is not a valid chat template: {error}. Correct it.") from error
