"""Answers the prompts of a terminal, one after the other."""

import ast
import contextlib
import dataclasses
import json
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from t5x_like.data.records import Record
from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.inference.records import TEXT_FIELD
from t5x_like.runtime import stop_signals, terminal

# A path for messages. Its suffix says that prompts are lines of text.
PATH = "prompt.txt"
# Seconds within which the further lines of a pasted text arrive.
_PASTE_SECONDS = 0.05
_HELP = "Type a prompt; several lines may be pasted. Ctrl-C discards an answer, Ctrl-D ends."
_HELP_COMMANDS = "/settings shows the settings of generation, /NAME VALUE changes one, such as /temperature 0.7."


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to a prompt.

    Attributes:
      fields: Its output fields, with `prediction`.
      tokens: Number of tokens, for the speed.
    """

    fields: Mapping[str, Any]
    tokens: int


# Function from a prompt and the settings of generation to its answer.
Respond = Callable[[Record, Decoding], Answer]


def converse(respond: Respond, decoding: Decoding, *, generates: bool = True) -> None:
    """Answers prompts until the end of standard input.

    Ctrl-C discards the answer that is being computed, or an unfinished prompt.

    Args:
      respond: Computes the answer.
      decoding: The settings of generation. Commands of the user change them.
      generates: Whether the model generates text. Otherwise, commands are errors.
    """
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):  # not on all platforms
            import readline  # noqa: F401 (gives `input` a history)
        print(f"{_HELP} {_HELP_COMMANDS}" if generates else _HELP)
    with stop_signals.released():
        while (prompt := _next_prompt("> " if is_terminal else "")) is not None:
            try:
                if prompt.startswith("/") and not generates:
                    raise UserError(f"{prompt}: the model generates no text and has no settings. Give a text.")
                if prompt.startswith("/"):
                    decoding = _command(prompt[1:], decoding)
                elif prompt.strip():
                    _print(*_timed(lambda text=prompt: respond(Record(1, {TEXT_FIELD: text}), decoding)))  # noqa: B023
            except UserError as error:
                print(terminal.visible(str(error)))
            except KeyboardInterrupt:
                print("\nThe answer is discarded.")
    if is_terminal:
        print()


def _next_prompt(mark: str) -> str | None:
    """Returns the next prompt, with all lines of a pasted text; None at the end of the input."""
    while True:
        try:
            lines = [input(mark)]
            while mark and select.select([sys.stdin], [], [], _PASTE_SECONDS)[0]:
                lines.append(input())
            return "\n".join(lines)
        except EOFError:
            return None
        except KeyboardInterrupt:
            print()


def _timed(compute: Callable[[], Answer]) -> tuple[Answer, float]:
    """Returns an answer and its seconds. It is computed in a thread, so that Ctrl-C does not wait for the devices."""
    found: list[Answer] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            found.append(compute())
        except Exception as error:
            failures.append(error)

    started = time.monotonic()
    thread = threading.Thread(target=run, daemon=True)
    with stop_signals.recorded_interrupts() as interrupts:
        thread.start()
        while thread.is_alive() and not interrupts:
            thread.join(0.05)
    if interrupts:
        raise KeyboardInterrupt
    if failures:
        raise failures[0]
    return found[0], time.monotonic() - started


def _print(answer: Answer, seconds: float) -> None:
    """Prints the text or the label, other fields as JSON, and the time."""
    fields = dict(answer.fields)
    fields.pop("log_probabilities", None)
    texts = fields.pop("predictions", [fields["prediction"]])
    del fields["prediction"]
    for text in texts:
        print(terminal.visible(text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)))
    others = f"{json.dumps(fields, ensure_ascii=False)}  " if fields else ""
    print(f"  [{others}{seconds:.2f} s, {answer.tokens / max(seconds, 1e-9):,.0f} tokens/s]", flush=True)


def _command(text: str, decoding: Decoding) -> Decoding:
    """Returns the settings after a command of the user, and prints those that are not the defaults.

    Raises:
      UserError: The setting is unknown, or its value is invalid.
    """
    name, _, value = text.strip().partition(" ")
    known = [field.name for field in dataclasses.fields(Decoding)]
    if name in known and value:
        decoding = dataclasses.replace(decoding, **{name: _literal(value)})
    elif name != "settings":
        raise UserError(f"/{text}: unknown. Give /settings, or /NAME VALUE with a NAME of {', '.join(known)}.")
    default = Decoding()
    changed = {name: getattr(decoding, name) for name in known if getattr(decoding, name) != getattr(default, name)}
    print(", ".join(f"{name}={value!r}" for name, value in changed.items()) or "greedy")
    return decoding


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError):
        return text.strip()
