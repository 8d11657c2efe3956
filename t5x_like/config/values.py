"""Values in gin syntax: literals, `@references` and `%macros`, with functions to parse and format them."""

import dataclasses
import difflib
import functools
import io
import pprint
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gin import config_parser

from t5x_like.config import moved_modules
from t5x_like.errors import UserError

LINE_LENGTH = 120
# Spellings of other languages that would otherwise become text.
_PYTHON_SPELLING = {"true": "True", "false": "False", "none": "None", "null": "None", "nil": "None"}
# Values that start with these characters must be valid gin. Other values that do not parse are text.
_GIN_STARTS = "@%([{'\""
# gin's message about text without quotes.
_UNQUOTED = re.compile(r"Failed to parse token '(.*)'")


class ConfigError(UserError):
    """The configuration is invalid. The message names the location of the setting and the remedy.

    Args:
      problem: The message without the suggestion.
      suggestion: The end of the message that suggests the nearest name; empty without one.
    """

    def __init__(self, problem: str, suggestion: str = ""):
        super().__init__(problem + suggestion)
        self.suggestion = suggestion


class IncompleteConfig(ConfigError):
    """The configuration lacks a required value, which the stored configuration of a run may have."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """A reference: `@scope/selector` (the function) or `@scope/selector()` (its result)."""

    selector: str
    scope: str
    evaluate: bool

    def __repr__(self) -> str:
        return f"@{self.scope + '/' if self.scope else ''}{self.selector}{'()' if self.evaluate else ''}"


@dataclasses.dataclass(frozen=True)
class Macro:
    """A macro `%NAME`: the value of NAME."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


REQUIRED = Macro("gin.REQUIRED")


class Delegate(config_parser.ParserDelegate):
    """Makes gin's parser return references and macros as data."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        """Returns a reference."""
        scope, _, selector = scoped_configurable_name.rpartition("/")
        return Reference(selector, scope, evaluate)

    def macro(self, macro_name: str) -> Macro:
        """Returns a macro."""
        return Macro(macro_name)


def references_in(value: Any) -> Iterator[Reference | Macro]:
    """Yields the references and macros in a value, including nested containers."""
    if isinstance(value, Reference | Macro):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from references_in(key)
            yield from references_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from references_in(item)


def replace(value: Any, function: Callable[[Reference | Macro], Any]) -> Any:
    """Applies `function` to every reference and macro in `value`, including nested containers."""
    if isinstance(value, Reference | Macro):
        return function(value)
    if isinstance(value, dict):
        return {replace(key, function): replace(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(replace(item, function) for item in value)
    return value


def is_literal(value: Any) -> bool:
    """Returns whether gin syntax can express `value`."""
    if isinstance(value, dict):
        return all(is_literal(key) and is_literal(item) for key, item in value.items())
    if type(value) in (list, tuple):
        return all(is_literal(item) for item in value)
    if isinstance(value, float):
        return value - value == 0  # gin syntax has no NaN and no infinity
    return value is None or type(value) in (bool, int, str)


def format_value(value: Any, before: str = "") -> str:
    """Formats a value in gin syntax, on several lines if it does not fit after `before` on one line."""
    if len(before) + len(repr(value)) <= LINE_LENGTH:
        return repr(value)
    indent = " " * (len(before) - len(before.lstrip()) + 4)
    lines = pprint.pformat(value, width=LINE_LENGTH - len(indent), sort_dicts=False).split("\n")
    return ("\n" + indent).join(lines)


def python_spelling(text: str) -> str | None:
    """Returns the Python spelling of a constant of another language, such as `True` for `true`; None for other text."""
    right = _PYTHON_SPELLING.get(text.strip().lower())
    return None if right is None or right == text.strip() else right


def from_command_line(name: str, text: str) -> Any:
    """Parses the value of `--gin.NAME=TEXT`. Text that is not valid gin is a string, which needs no quotes.

    Args:
      name: Name of the macro or parameter.
      text: The text on the command line.

    Returns:
      The value; references and macros are `Reference` and `Macro`.

    Raises:
      ConfigError: The text is empty, a misspelled constant such as `true`, or starts like gin and is not valid.
    """
    text = text.strip()
    if not text:
        raise ConfigError(f"--gin.{name}=: missing value. Give None, or \"''\" for an empty string")
    if right := python_spelling(text):
        raise ConfigError(f"--gin.{name}={text}: write {right}, or \"'{text}'\" for the string")
    try:
        parser = config_parser.ConfigParser(text, Delegate())
        value = parser.parse_value()
        if parser.current_token.type not in (tokenize.NEWLINE, tokenize.ENDMARKER):
            raise SyntaxError(f"unexpected {parser.current_token.string!r}")
        return value
    except (SyntaxError, tokenize.TokenError) as error:
        if text[0] in _GIN_STARTS:
            detail = str(error.args[0])
            if token := _UNQUOTED.search(detail):
                detail = f"text within it needs quotes: '{token[1]}'"
            raise ConfigError(f"--gin.{name}={text} is not a gin value: {detail}") from error
        return text


def explain(error: SyntaxError | tokenize.TokenError, file: str) -> ConfigError:
    """Converts a syntax error of gin in `file` to an error with the line and the right spelling."""
    message, location = str(error.args[0]), error.args[1] if len(error.args) > 1 else None
    line = getattr(error, "lineno", None) or (location[0] if isinstance(location, tuple) else None)
    source = (getattr(error, "text", None) or "").strip()
    if token := _UNQUOTED.search(message):
        if right := python_spelling(token[1]):
            message = f"write {right} instead of {token[1]}"
        else:
            message = f"strings need quotes in a gin file: '{token[1]}…'"
    elif message.startswith("Unable to parse value"):
        message = "missing or invalid value. Write a number, a string in quotes, a list, a @reference or a %macro"
    elif message.startswith("EOF in multi-line"):
        message = "the file ends within a bracket or a string that is not closed"
    where = f"{file}:{line}" if line else file
    return ConfigError(f"{where}: {message}" + (f"\n    {source}" if source else ""))


@functools.lru_cache(maxsize=1024)
def parse(text: str, shown: str) -> tuple[Any, ...]:
    """Parses gin text. The statements are kept, because an ablation reads the same files for each of its cells.

    Args:
      text: The text.
      shown: Its name in error messages.

    Returns:
      Its statements, as `gin.config_parser` defines them.

    Raises:
      ConfigError: The text is not valid gin. The message has the line.
    """
    source = io.StringIO(moved_modules.renamed(text))
    source.name = shown
    try:
        return tuple(config_parser.ConfigParser(source, Delegate()))
    except (SyntaxError, tokenize.TokenError) as error:
        raise explain(error, shown) from error
    except (RecursionError, MemoryError) as error:  # the parser of Python raises the latter for many brackets
        raise ConfigError(f"{shown}: nested too deeply to be a configuration. Restore or correct the file.") from error


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean X?` with the known name most similar to `name`, or an empty string."""
    by_lower = {candidate.lower(): candidate for candidate in sorted(known)}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[matches[0]]}?" if matches else ""
