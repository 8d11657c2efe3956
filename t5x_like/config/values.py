"""Values as gin writes them: literals, `@references` and `%macros`, and how they are parsed and printed."""

import dataclasses
import difflib
import pprint
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gin import config_parser

from t5x_like.errors import UserError

LINE_LENGTH = 120
# Spellings of other languages that would otherwise become text.
_PYTHON_SPELLING = {"true": "True", "false": "False", "none": "None", "null": "None", "nil": "None"}
# What begins like this was meant as gin, so a mistake in it is an error; anything else that does not parse is text.
_MEANT_AS_GIN = "@%([{'\""


class ConfigError(UserError):
    """What was asked for cannot be run; the message says where it was set and what to do."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """`@scope/selector` (the function itself) or `@scope/selector()` (the result of calling it)."""

    selector: str
    scope: str
    evaluate: bool

    def __repr__(self) -> str:
        return f"@{self.scope + '/' if self.scope else ''}{self.selector}{'()' if self.evaluate else ''}"


@dataclasses.dataclass(frozen=True)
class Macro:
    """`%NAME`, which stands for the value of NAME."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


REQUIRED = Macro("gin.REQUIRED")


class Delegate(config_parser.ParserDelegate):
    """Makes gin's parser return references and macros as data."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        scope, _, selector = scoped_configurable_name.rpartition("/")
        return Reference(selector, scope, evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


def inner(value: Any) -> Iterator[Reference | Macro]:
    """The references and macros in a value, however deep."""
    if isinstance(value, Reference | Macro):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from inner(key)
            yield from inner(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from inner(item)


def replace(value: Any, function: Callable[[Reference | Macro], Any]) -> Any:
    """`value` with every reference and macro in it replaced by `function` of it."""
    if isinstance(value, Reference | Macro):
        return function(value)
    if isinstance(value, dict):
        return {replace(key, function): replace(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(replace(item, function) for item in value)
    return value


def is_literal(value: Any) -> bool:
    """Whether gin can write `value` down and read it back."""
    if isinstance(value, dict):
        return all(is_literal(key) and is_literal(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(is_literal(item) for item in value)
    if isinstance(value, float):
        return value - value == 0  # neither NaN nor infinite, for which gin has no spelling
    return value is None or type(value) in (bool, int, str)


def show(value: Any, before: str = "") -> str:
    """`value` in gin's syntax, over several lines where it would not fit on one behind `before`."""
    if len(before) + len(repr(value)) <= LINE_LENGTH:
        return repr(value)
    indent = " " * (len(before) - len(before.lstrip()) + 4)
    lines = pprint.pformat(value, width=LINE_LENGTH - len(indent), sort_dicts=False).split("\n")
    return ("\n" + indent).join(lines)


def misspelt(text: str) -> str | None:
    """Python's spelling of `text` where that is another language's, such as `true`."""
    right = _PYTHON_SPELLING.get(text.strip().lower())
    return None if right is None or right == text.strip() else right


def from_command_line(name: str, text: str) -> Any:
    """The value of `--gin.NAME=TEXT`: what gin parses, or else the text itself, which needs no quotes.

    Raises:
      ConfigError: nothing, a misspelt constant, or a mistake in what was meant as gin.
    """
    text = text.strip()
    if not text:
        raise ConfigError(f"--gin.{name}= has no value; give None for nothing and \"''\" for an empty text")
    if right := misspelt(text):
        raise ConfigError(f"--gin.{name}={text}: write {right} (or \"'{text}'\" for the text)")
    try:
        parser = config_parser.ConfigParser(text, Delegate())
        value = parser.parse_value()
        if parser.current_token.type not in (tokenize.NEWLINE, tokenize.ENDMARKER):
            raise SyntaxError(f"{parser.current_token.string!r} is left over")
        return value
    except (SyntaxError, tokenize.TokenError) as error:
        if text[0] in _MEANT_AS_GIN:
            raise ConfigError(f"--gin.{name}={text} is not a gin value: {error.args[0]}") from error
        return text


def explain(error: SyntaxError | tokenize.TokenError, file: str) -> ConfigError:
    """gin's complaint about a line of `file` as an error that says where and what to write."""
    message, location = str(error.args[0]), error.args[1] if len(error.args) > 1 else None
    line = getattr(error, "lineno", None) or (location[0] if isinstance(location, tuple) else None)
    source = (getattr(error, "text", None) or "").strip()
    if token := re.search(r"Failed to parse token '(.*)'", message):
        if right := misspelt(token[1]):
            message = f"{token[1]} is spelt {right}"
        else:
            message = f"text needs quotes in a gin file: '{token[1]}…'"
    where = f"{file}:{line}" if line else file
    return ConfigError(f"{where}: {message}" + (f"\n    {source}" if source else ""))


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the known name that is most like `name`, or nothing."""
    by_lower = {candidate.lower(): candidate for candidate in sorted(known)}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[matches[0]]}?" if matches else ""
