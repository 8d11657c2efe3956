"""What a command was started with: command line, versions, commits."""

import os
import shlex
import subprocess
import sys

import jax

from t5x_like.runtime import provenance


def git(directory, *words):
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *author, "-C", str(directory), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_repositories_have_commit_and_whether_tracked_files_differ(tmp_path):
    code, outside = tmp_path / "code", tmp_path / "outside"
    (code / "inner").mkdir(parents=True)
    outside.mkdir()
    git(code, "init", "-q")
    assert provenance.repositories([str(code)]) == [], "a repository without a commit"
    (code / "tasks.py").write_text("one\n")
    git(code, "add", "tasks.py")
    git(code, "commit", "-q", "-m", "first")
    (code / "runs").mkdir()
    (code / "runs/log.txt").write_text("untracked\n")
    found = {"directory": os.path.realpath(code), "commit": git(code, "rev-parse", "HEAD")}
    assert provenance.repositories(map(str, (code, code / "inner", outside))) == [found | {"dirty": False}]
    (code / "tasks.py").write_text("two\n")
    assert provenance.repositories([str(code / "inner")]) == [found | {"dirty": True}]


def test_machine_without_git_has_no_repositories(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.repositories(provenance.code_directories()) == []


def test_slow_git_does_not_delay_a_run(tmp_path, monkeypatch):
    (tmp_path / "git").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(provenance, "_GIT_SECONDS", 0.1)
    assert provenance.repositories([str(tmp_path)]) == []


def test_versions_are_those_of_installed_packages():
    found = provenance.versions()
    assert {"python", "t5x_like", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"} <= set(found)
    assert found["jax"] == jax.__version__


def test_command_line_can_be_repeated_in_a_shell():
    words = ("train", "--gin.TASK_FEATURE_LENGTHS={'inputs': 8}")
    command = provenance.command_line(words)
    done = subprocess.run(
        ["sh", "-c", command.replace("t5x_like", "printf '%s\\n'", 1)], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == list(words)
    assert shlex.split(provenance.command_line()) == sys.orig_argv
