"""Tests that the commands in docs/tpu_vm.md are valid."""

import re
import shlex
from pathlib import Path

import pytest

from t5x_like import cli
from t5x_like.metrics import rows

pytestmark = pytest.mark.full

TEXT = (Path(__file__).resolve().parents[2] / "docs/tpu_vm.md").read_text()
# Indented blocks. A backslash at the end of a line continues it.
COMMANDS = [
    shlex.split(line)
    for line in re.sub(r"\\\n\s*", "", TEXT).splitlines()
    if line.startswith("    ") and line.strip().startswith(("launch/", "t5x_like"))
]
LAUNCHER_COMMANDS = [words for words in COMMANDS if words[0] == "launch/tpu.py"]
T5X_LIKE_COMMANDS = [words for words in COMMANDS if words[0] == "t5x_like"]


def test_guide_covers_all_actions():
    actions = {words[1] for words in LAUNCHER_COMMANDS}
    steps = ["train", "logs", "status", "stop", "fetch", "delete"]
    assert actions == set(steps)
    assert [words[1] for words in T5X_LIKE_COMMANDS] == ["cache", "train", "plan", "eval"]
    assert len(COMMANDS) == TEXT.count("    launch/tpu.py") + TEXT.count("\n    t5x_like")


@pytest.mark.parametrize("words", LAUNCHER_COMMANDS, ids=" ".join)
def test_launcher_commands_support_dry_run(cloud, words):
    separator = words.index("--") if "--" in words else len(words)
    result = cloud.tpu(*words[1:separator], "--dry_run", *words[separator:])
    assert ("gcloud storage rsync" if words[1] == "fetch" else "https://tpu.googleapis.com/v2/") in result.stdout
    assert ("# cost per hour: " in result.stdout) == (words[1] == "train")
    assert cloud.calls() == [] and cloud.requests == 0


@pytest.mark.parametrize(
    "words",
    [*T5X_LIKE_COMMANDS, *(words[words.index("--") + 1 :] for words in LAUNCHER_COMMANDS if "--" in words)],
    ids=" ".join,
)
def test_t5x_like_commands_parse_and_gin_files_exist(words):
    arguments = cli.parse(words[1:])
    root = Path(__file__).resolve().parents[2]
    assert all((root / "gin_configs" / name).is_file() for name in arguments.gin_files)


def test_first_command_is_a_run_of_five_minutes():
    first = next(line for line in TEXT.splitlines() if line.startswith("    "))
    assert first.startswith("    launch/tpu.py train hello --topology=v5e:1x1 ")
    assert {"--delete_when_done", "--spot", "--gin.TRAIN_STEPS=100"} <= set(LAUNCHER_COMMANDS[0])


def test_plan_and_train_commands_set_hardware_file_and_train_steps():
    long = [words for words in COMMANDS if "hello" not in words]
    with_topology = [words for words in long if any(word.startswith("--topology=") for word in words)]
    assert len(with_topology) == 4
    for words in with_topology:
        chip = re.search(r"--topology=(\w+):", " ".join(words))[1]
        assert f"--gin_file=hardware/{chip}.gin" in words and "--gin.TRAIN_STEPS=100000" in words, words


def test_metrics_paths_are_correct():
    names = re.findall(r"`([0-9][^`]*\.jsonl)`", TEXT)
    assert len(names) == 2 and all(map(rows._OBJECT.match, names))
    assert f"cat 'gs://my-bucket/runs/first/{rows._DIRECTORY}/*.jsonl'" in TEXT
    assert "runs/first/metrics.jsonl" not in TEXT


def test_documented_options_exist(cloud):
    help_text = cloud.tpu("train", "--help").stdout
    table = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `--")]
    options = re.findall(r"--[a-z_]+", " ".join(table))
    assert len(options) >= 10
    assert [option for option in options if f"{option} " not in help_text and f"{option}\n" not in help_text] == []
