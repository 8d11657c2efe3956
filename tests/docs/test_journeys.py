"""The commands of the documentation's journeys, run in the order of the text, in one directory per page."""

import json
import re
import shlex
import subprocess
import sys

import page_commands
import pytest
import small_models

PAGES = ("laptop", "weights", "new_task")
# Commands that need a bucket or published weights. `tests/cli/test_commands.py` resolves these.
ELSEWHERE = (
    "gs://",
    "t5-small",
    "bert-base-uncased",
    "HF_PATH=gpt2",
    "checkpoint_1000000",
    "uncased_L-12",
    "electra_small",
    "bigbr_base",
    "etc_base",
)


def commands(page):
    """Returns the shell lines of a page that run anywhere."""
    return [line for line in page_commands.commands(page) if not any(word in line for word in ELSEWHERE)]


def python_files(page):
    """Returns (file name, code) of each block of code whose file name precedes it."""
    return re.findall(r"`(\w+\.py)`:\n\n```python\n(.*?)```", page_commands.read(page), flags=re.DOTALL)


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Returns a directory for each page, in which its commands run in order and read the files of earlier ones."""
    paths = {page: tmp_path_factory.mktemp(page) for page in PAGES}
    for page, path in paths.items():
        for name, code in python_files(page):
            (path / name).write_text(code, encoding="utf-8")
    small_models.write_bert(paths["new_task"] / "bert-tiny")
    return paths


def test_pages_have_commands_and_one_module():
    assert [len(commands(page)) for page in PAGES] == [4, 3, 10]
    assert [len(python_files(page)) for page in PAGES] == [0, 0, 2]


@pytest.mark.full
@pytest.mark.parametrize(
    ("page", "command"), [(page, command) for page in PAGES for command in commands(page)], ids=page_commands.described
)
def test_command_succeeds(page, command, directories, run_command, monkeypatch):
    monkeypatch.chdir(directories[page])
    if not command.startswith("t5x_like "):
        subprocess.run(command, shell=True, check=True, timeout=20)
        return
    code, output = run_command(shlex.split(command)[1:])
    assert code == 0, output
    if command.startswith("t5x_like eval") and "capitals" in command:
        assert "capitals/exact_match = " in output
    if command.startswith("t5x_like eval") and "reviews" in command:
        assert "reviews/accuracy = " in output and "reviews/f1 = " in output


@pytest.mark.full
def test_commands_write_the_documented_files(directories):
    """Runs after the commands, in file order."""
    laptop, weights, new_task = (directories[page] for page in ("laptop", "weights", "new_task"))
    (opinion,) = (new_task / "opinions.jsonl").read_text().splitlines()
    assert json.loads(opinion)["prediction"] in ("negative", "positive")
    assert len((laptop / "answers.jsonl").read_text().splitlines()) == 1
    assert "fsdp" in (laptop / "runs" / "debug" / "model_info.txt").read_text()
    assert list((weights / "exported").glob("*.safetensors"))
    assert (weights / "runs" / "imported" / "checkpoints").is_dir()


@pytest.mark.full
def test_module_runs_as_script():
    done = subprocess.run([sys.executable, "-m", "t5x_like", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("t5x_like ")
