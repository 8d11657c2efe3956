"""docs/tpu_vm.md: every command in it can be given as it stands there."""

import re
import shlex
from pathlib import Path

import pytest

from t5x_like import cli

TEXT = (Path(__file__).resolve().parents[2] / "docs/tpu_vm.md").read_text()
# Indented blocks; a line that ends with a backslash goes on in the next one.
COMMANDS = [
    shlex.split(line)
    for line in re.sub(r"\\\n\s*", "", TEXT).splitlines()
    if line.startswith("    ") and line.strip().startswith(("launch/", "t5x_like"))
]
LAUNCHED = [words for words in COMMANDS if words[0] == "launch/tpu.py"]
TYPED = [words for words in COMMANDS if words[0] == "t5x_like"]


def test_the_whole_journey_is_there():
    actions = {words[1] for words in LAUNCHED}
    steps = ["train", "create", "wait", "copy", "install", "start", "logs", "status", "stop", "fetch", "delete"]
    assert actions == set(steps)
    assert [words[1] for words in TYPED] == ["plan", "eval"]
    assert len(COMMANDS) == TEXT.count("    launch/tpu.py") + TEXT.count("\n    t5x_like")


@pytest.mark.parametrize("words", LAUNCHED, ids=" ".join)
def test_commands_to_launch_run_dry(cloud, words):
    separator = words.index("--") if "--" in words else len(words)
    result = cloud.tpu(*words[1:separator], "--dry_run", *words[separator:])
    assert "gcloud " in result.stdout
    assert cloud.calls() == []


@pytest.mark.parametrize(
    "words", [*TYPED, *(words[words.index("--") + 1 :] for words in LAUNCHED if "--" in words)], ids=" ".join
)
def test_commands_to_t5x_like_are_understood_and_name_what_exists(words):
    arguments = cli.parse(words[1:])
    root = Path(__file__).resolve().parents[2]
    assert all((root / "gin_configs" / name).is_file() for name in arguments.gin_files)


def test_what_is_planned_and_trained_takes_the_options_of_its_chip_and_the_length_of_the_run():
    shaped = [words for words in COMMANDS if words[1] in ("plan", "train")]
    assert len(shaped) == 3
    for words in shaped:
        chip = re.search(r"--topology=(\w+):", " ".join(words))[1]
        assert f"--gin_file=hardware/{chip}.gin" in words and "--gin.TRAIN_STEPS=100000" in words, words


def test_losses_are_where_the_page_says():
    names = re.findall(r"`([0-9][^`]*\.jsonl)`", TEXT)
    assert len(names) == 2 and all(map(_rows._OBJECT.match, names))
    assert f"cat 'gs://my-bucket/runs/first/{_rows._FOLDER}/*.jsonl'" in TEXT
    assert "runs/first/metrics.jsonl" not in TEXT


def test_options_that_are_explained_exist(cloud):
    shown = cloud.tpu("train", "--help").stdout
    table = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `--")]
    options = re.findall(r"--[a-z_]+", " ".join(table))
    assert len(options) >= 10
    assert [option for option in options if f"{option} " not in shown and f"{option}\n" not in shown] == []
