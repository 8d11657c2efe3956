"""Control characters of data, paths and messages of others are shown, not sent to the terminal."""

import io
import logging

import pytest
from rich.table import Table
from rich.text import Text

from t5x_like.reporting import html_document, markdown
from t5x_like.runtime import console_log, terminal

pytestmark = pytest.mark.notf

CLEAR = "\x1b[2J\x1b]0;title\x07"
SHOWN = r"\x1b[2J\x1b]0;title\x07"


def test_text_keeps_tabs_and_lines():
    assert terminal.visible("a\tb\né") == "a\tb\né"
    assert terminal.visible(f"{CLEAR}\r\x9b\x7f") == SHOWN + r"\x0d\x9b\x7f"


def test_everything_that_a_console_prints_is_visible():
    file = io.StringIO()
    console = terminal.console(file=file, width=120, force_terminal=True, highlight=False)
    table = Table("column")
    table.add_row(CLEAR)
    for each in (CLEAR, Text(CLEAR, style="bold"), table):
        console.print(each, markup=False)
    assert file.getvalue().count(SHOWN.removesuffix(r"\x07")) == 3  # rich removes BEL
    assert "\x1b[1m" in file.getvalue()  # the style of the console itself
    assert "\x1b[2J" not in file.getvalue() and "\x07" not in file.getvalue()


def test_log_lines_and_errors_are_visible(capsys, monkeypatch):
    handler = console_log.handler()
    record = logging.LogRecord("root", logging.ERROR, __file__, 1, "task %s", (CLEAR,), None)
    handler.emit(record)
    terminal.print_exception(ValueError(CLEAR))
    printed = capsys.readouterr().err
    assert f"E task {SHOWN}" in printed and f"ValueError: {SHOWN}" in printed and "\x1b" not in printed


def test_errors_of_commands_are_visible(run_command):
    code, output = run_command(["infer", f"--input={CLEAR}"])
    assert code and "\x1b" not in output and "\\x1b" in output


def test_direction_of_text_is_shown():
    """Otherwise a name from a file could be shown as another one."""
    for character in "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069":
        shown = f"evil\\u{ord(character):04x}txt.exe"
        assert terminal.visible(f"evil{character}txt.exe") == shown
        assert html_document.text(f"evil{character}txt.exe") == shown
        assert markdown.code(f"evil{character}txt.exe") == f"`{shown}`"
    assert terminal.visible("שלום مرحبا") == "שלום مرحبا"
