"""Tests of docs/own_text.md: commands resolve, and tables list all tasks over text files and their arguments."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import seqio

import data_tasks.shipped_tasks  # noqa: F401  registers the tasks
from t5x_like import cli, config
from t5x_like.data import task_arguments

TEXT = (Path(__file__).resolve().parents[3] / "docs/own_text.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)[1:]
    for line in re.sub(r"\\\n\s*", "", TEXT).splitlines()
    if line.startswith("    t5x_like") and "…" not in line
]
TASKS = sorted(name for name in seqio.TaskRegistry.names() if name.startswith("text_files_"))


def test_document_has_commands_for_three_families():
    found = [words[0] for words in COMMANDS]
    assert [found.count(name) for name in ("vocabulary", "train", "eval")] == [3, 4, 3]
    assert found.count("inspect") == 4  # the fourth finds the origin of a text
    assert found.count("infer") == 2


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_resolve(words):
    parsed = cli.parse(words)
    command = cli.COMMANDS[parsed.command]
    if command.needs_run and parsed.command != "inspect":  # these use the configuration of an existing run
        return
    config.load(
        command.function,
        files=command.gin_files(parsed.gin_files),
        bindings=parsed.bindings,
        given=("run_config",) if parsed.command == "train" else (),
    )
    values = dict(parsed.bindings)
    if "TASK_ARGUMENTS" in values:
        task = values["MIXTURE_OR_TASK_NAME"]
        task_arguments.update([task], ast.literal_eval(values["TASK_ARGUMENTS"]))
        task_arguments.update([task], {})


def test_tables_list_all_tasks_and_arguments():
    assert set(re.findall(r"^\| `(text_files_\w+)` \|", TEXT, re.MULTILINE)) == set(TASKS)
    table = TEXT.partition("`TASK_ARGUMENTS` is a dictionary of")[2]
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert named == {name for task in TASKS for name in task_arguments.names(task)}
