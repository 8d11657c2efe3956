"""Tests that the commands in docs/gke.md, slurm.md and skypilot.md are valid, and those of gcloud in docs/tpu_vm.md."""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import gcloud_linter
import pytest

from t5x_like import cli

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {page: (ROOT / "docs" / page).read_text() for page in ("gke.md", "slurm.md", "skypilot.md")}
TPU_VM = (ROOT / "docs/tpu_vm.md").read_text()


def commands(page: str) -> list[list[str]]:
    """Returns the commands in the indented blocks of a page. A backslash at the end of a line continues it."""
    lines = re.sub(r"\\\n\s*", "", TEXTS.get(page, TPU_VM)).splitlines()
    shown = [re.sub(r"\s# .*| \| bash.*| >\S+$", "", line) for line in lines if re.match(r" {4}[a-z.]", line)]
    return list(map(shlex.split, shown))


LAUNCHES = [words for page in TEXTS for words in commands(page) if words[0].startswith("launch/")]
T5X_LIKE = [words for page in TEXTS for words in commands(page) if words[0] == "t5x_like"]
T5X_LIKE += [["t5x_like", *words[1:]] for words in commands("slurm.md") if words[0] == ".venv/bin/t5x_like"]
T5X_LIKE += [words[words.index("--") + 1 :] for words in LAUNCHES if "--" in words]


def test_programs_are_known():
    used = {page: {words[0] for words in commands(page)} for page in TEXTS}
    planning = {"pip", "export", "t5x_like"}
    assert used["gke.md"] == {"gcloud", "kubectl", *planning, "launch/gke.py", "launch/docker.sh"}
    installed = {".venv/bin/pip", ".venv/bin/t5x_like"}
    local = {"python3", "export", "apptainer", "squeue", "tail", "scancel", "gcloud", "rm"}
    assert used["slurm.md"] == {*installed, *local, "launch/slurm.sh", "launch/docker.sh"}
    assert used["skypilot.md"] == {"pip", "sky", "launch/skypilot.py"}
    assert {words[0] for words in commands("tpu_vm.md")} == {"gcloud", *planning, "launch/tpu.py"}


@pytest.mark.parametrize("page", ["tpu_vm.md", "gke.md"])
def test_guides_prepare_the_project_before_anything_is_created(page):
    shown = [" ".join(words) for words in commands(page)]
    starts = [
        "gcloud auth login",
        "gcloud auth application-default login",
        "gcloud services enable",
        "gcloud storage buckets create",
        "pip install -e .[plan]",
        "t5x_like plan",
        "launch/gke.py nodes" if page == "gke.md" else "launch/tpu.py train first",
    ]
    positions = [next(i for i, line in enumerate(shown) if line.startswith(start)) for start in starts]
    assert positions == sorted(positions)


def test_every_command_on_c4_reads_the_version_that_the_guide_copies():
    shown = [words for page in (*TEXTS, "tpu_vm.md") for words in commands(page)]
    on_c4 = [words for words in shown if "--gin.MIXTURE_OR_TASK_NAME=c4_v310_span_corruption" in words]
    copied = [word for words in shown for word in words if "allennlp-tensorflow-datasets" in word]
    assert len(on_c4) >= 8 and {path.rpartition("/c4/en/")[2] for path in copied} == {"3.0.1"}
    for words in on_c4:
        (arguments,) = [word.partition("=")[2] for word in words if word.startswith("--gin.TASK_ARGUMENTS=")]
        values = ast.literal_eval(arguments)
        assert values["tfds_name"] == "c4/en:3.0.1" and values["data_dir"].endswith("/tfds")
        assert set(values) <= {"tfds_name", "data_dir", "vocabulary_path"}


def test_gke_guide_creates_and_deletes_in_order():
    actions = [words[1:3] for words in commands("gke.md") if words[0] == "launch/gke.py"]
    shown = ["nodes", "nodes", "apply", "status", "logs", "delete", "delete", "nodes"]
    assert [action for action, name in actions if name == "first"] == shown
    for name in ("wide", "large"):
        assert [action for action, other in actions if other == name] == ["nodes", "apply", "delete", "nodes"]
    deletions = [words for words in commands("gke.md") if words[1] == "nodes" and "--delete" in words]
    assert [words[2] for words in deletions] == ["first", "wide", "large"]


@pytest.mark.parametrize("words", LAUNCHES, ids=" ".join)
def test_launch_commands_support_dry_run(words):
    separator = words.index("--") if "--" in words else len(words)
    program = [sys.executable] if words[0].endswith(".py") else []
    result = subprocess.run(
        [*program, ROOT / words[0], *words[1:separator], "--dry_run", *words[separator:]],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 0, result.stderr
    comments = [line for line in result.stdout.splitlines() if line.startswith("#")]
    called = result.stdout.splitlines()[len(comments)]
    assert called.startswith(("kubectl ", "gcloud ", "docker ", "env ", "{"))
    is_request = words[0] in ("launch/slurm.sh", "launch/skypilot.py") or (words[1] in ("apply", "nodes"))
    assert [line.partition(":")[0] for line in comments] == ["# cost per hour", "# cost of the run"] * is_request


@pytest.mark.parametrize("words", T5X_LIKE, ids=" ".join)
def test_t5x_like_commands_parse_and_gin_files_exist(words):
    assert words[0] == "t5x_like"
    arguments = cli.parse(words[1:])
    assert all((ROOT / "gin_configs" / name).is_file() for name in arguments.gin_files)
    if topology := [word for word in words if word.startswith("--topology=")]:
        assert f"--gin_file=hardware/{topology[0].partition('=')[2].partition(':')[0]}.gin" in words


@pytest.mark.skipif(not shutil.which("gcloud"), reason="needs gcloud")
def test_gcloud_accepts_the_commands_of_the_guides(tmp_path):
    pages = ("gke.md", "slurm.md", "tpu_vm.md")
    shown = [shlex.join(words) for page in pages for words in commands(page) if words[0] == "gcloud"]
    nodes = [words for words in LAUNCHES if words[1] == "nodes"]
    calls = [
        line
        for words in nodes
        for line in subprocess.run(
            [sys.executable, ROOT / words[0], *words[1:], "--dry_run"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        if not line.startswith("#")
    ]
    assert len(shown) > 25 and len(calls) > 5
    assert gcloud_linter.errors([*shown, *calls], tmp_path) == {}


def test_gke_commands_use_the_hardware_file_of_their_topology():
    trained = [words for words in LAUNCHES if words[1] == "apply"]
    assert len(trained) == 4
    for words in trained:
        generation = re.search(r"--topology=(\w+):", " ".join(words))
        assert f"--gin_file=hardware/{generation[1] if generation else 'gpu'}.gin" in words


@pytest.mark.parametrize(("page", "script"), [("gke.md", "gke.py"), ("slurm.md", "slurm.sh")])
def test_documented_options_exist(page, script):
    program = [sys.executable] if script.endswith(".py") else []
    command = [*program, ROOT / "launch" / script, "--help"]
    help_text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    rows = [line.split("|")[1] for line in TEXTS[page].splitlines() if line.startswith("| `--")]
    options = re.findall(r"--[a-z_]+", " ".join(rows))
    assert len(options) >= 9
    assert [option for option in options if not re.search(rf"{option}[\s=]", help_text)] == []
