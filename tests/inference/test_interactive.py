"""Prompts in a terminal: pasted lines, Ctrl-C, Ctrl-D, settings."""

import os
import pty
import signal
import subprocess
import sys

import pytest

from t5x_like.decoding.settings import Decoding
from t5x_like.errors import UserError
from t5x_like.inference.interactive import Answer, converse

SCRIPT = """
import os
import time
from t5x_like.decoding.settings import Decoding
from t5x_like.inference.interactive import Answer, converse
from t5x_like.runtime import stop_signals

def respond(record, decoding):
    if record.values["inputs"] == "slow":
        os.write(1, b"thinking\\n")  # at once: a newline of its own can come within the next prompt
        time.sleep(60)
    return Answer({"prediction": "lines: " + " + ".join(record.values["inputs"].split(chr(10)))}, 3)

with stop_signals.watched():
    converse(respond, Decoding())
"""


def test_terminal_reads_pasted_lines_and_survives_interrupts():
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=follower, stdout=follower, stderr=follower, start_new_session=True
    )
    os.close(follower)
    shown = ""

    def expect(text):
        nonlocal shown
        while text not in shown:
            shown += os.read(leader, 4096).decode()
        shown = shown.partition(text)[2]

    try:
        expect("> ")
        os.write(leader, b"one\ntwo\n")
        expect("lines: one + two")
        expect("tokens/s]")
        expect("> ")
        for _ in range(2):  # a second Ctrl-C ends other commands
            os.write(leader, b"slow\n")
            expect("thinking")
            process.send_signal(signal.SIGINT)
            expect("The answer is discarded.")
            expect("> ")
        os.write(leader, b"three\n")
        expect("lines: three")
        expect("> ")  # what is typed before the prompt may be lost
        os.write(leader, b"\x04")
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        os.close(leader)


def test_commands_change_settings_and_errors_do_not_end_the_session(monkeypatch, capsys):
    lines = iter(["a", "/temperature 0.5", "/samples 2", "/beams 4", "/nonsense", "a", "bad"])
    monkeypatch.setattr("builtins.input", lambda mark: next(lines, None) or (_ for _ in ()).throw(EOFError))
    monkeypatch.setattr(sys, "stdin", open(os.devnull))
    seen = []

    def respond(record, decoding):
        seen.append(decoding)
        if record.values["inputs"] == "bad":
            raise UserError("'bad': not a prompt. Give another.")
        fields = {"prediction": "x", "log_probability": -1.5}
        return Answer(fields | {"predictions": ["x", "y"]} if decoding.samples > 1 else fields, 2)

    converse(respond, Decoding())
    sampled = Decoding(temperature=0.5, samples=2)
    assert seen == [Decoding(), sampled, sampled]
    output = capsys.readouterr().out
    assert "temperature=0.5, samples=2" in output and "x\ny\n" in output and '{"log_probability": -1.5}' in output
    for message in (
        "sampling does not combine with beams=4",
        "/nonsense: unknown. Give /settings",
        "'bad': not a prompt",
    ):
        assert message in output


def test_model_that_generates_no_text_has_no_settings(monkeypatch, capsys):
    lines = iter(["/temperature 0.5", "a"])
    monkeypatch.setattr("builtins.input", lambda mark: next(lines, None) or (_ for _ in ()).throw(EOFError))
    monkeypatch.setattr(sys, "stdin", open(os.devnull))
    converse(lambda record, decoding: Answer({"prediction": "positive"}, 2), Decoding(), generates=False)
    output = capsys.readouterr().out
    assert output.startswith("/temperature 0.5: the model generates no text") and "positive\n" in output


@pytest.mark.parametrize("setting", ["mode", "output_path"])
def test_interactive_with_files_or_scores_raises(setting):
    from t5x_like.infer import infer

    options = {"mode": "score"} if setting == "mode" else {"output_path": "out.jsonl"}
    with pytest.raises(UserError, match="--interactive: reads prompts in one process. Omit --input"):
        infer(None, interactive=True, **options)
