"""Tests for launch/log_copy.py: a growing log is copied in parts."""

import sys
from pathlib import Path

LAUNCH = Path(__file__).resolve().parents[2] / "launch"
sys.path.insert(0, str(LAUNCH))
try:
    import log_copy
finally:
    sys.path.pop(0)


def parts(directory: Path) -> list[str]:
    return [path.read_text() for path in sorted(directory.glob("*.log"))]


def test_new_bytes_of_this_job_are_copied_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(log_copy, "PART_BYTES", 4)
    log, target = tmp_path / "log", tmp_path / "copy"
    log.write_text("old job|")
    copy = log_copy.LogCopy(log, 8, str(target))
    for text, expected in (("ab", ["ab"]), ("cdef", ["abcd", "ef"]), ("gh", ["abcd", "efgh"]), ("", ["abcd", "efgh"])):
        with log.open("a") as file:
            file.write(text)
        copy._copy_new_bytes()
        assert parts(target) == expected


def test_last_bytes_are_copied_at_the_end(tmp_path):
    log, target = tmp_path / "log", tmp_path / "copy"
    log.write_text("")
    with log_copy.LogCopy(log, 0, str(target)):
        log.write_text("the last words")
    assert parts(target) == ["the last words"]


def test_failed_copy_is_reported_once_and_retried(tmp_path, capsys):
    log, target = tmp_path / "log", tmp_path / "copy"
    log.write_text("text")
    target.write_text("a file where a directory is needed")
    copy = log_copy.LogCopy(log, 0, str(target))
    copy._copy_new_bytes()
    copy._copy_new_bytes()
    assert capsys.readouterr().err.count("the log is not copied to") == 1
    target.unlink()
    copy._copy_new_bytes()
    assert parts(target) == ["text"]
