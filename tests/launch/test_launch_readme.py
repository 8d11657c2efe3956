"""Tests that the commands in launch/README.md are valid."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "launch/README.md").read_text()
COMMANDS = [
    shlex.split(line)
    for line in re.sub(r"\\\n\s*", "", TEXT).splitlines()
    if re.match(r" {4}launch/(gke|slurm|docker|local_multiprocess)", line)
]


def guide(page: str) -> str:
    assert f"(../docs/{page}.md)" in TEXT
    return (ROOT / f"docs/{page}.md").read_text()


def test_every_launcher_is_listed_and_has_an_example():
    launchers = {path.name for path in (ROOT / "launch").glob("*.*") if path.stat().st_mode & 0o100}
    internal = {
        "check_command.py",
        "supervise.py",
        "install_worker.sh",
        "startup.sh",
        "worker.py",
        "host_settings.sh",
        "slurm.sbatch",
    }  # called by other scripts
    listed = set(re.findall(r"`([a-z_]+\.(?:sh|py))`", TEXT.partition("## This machine")[0]))
    assert listed == launchers - internal
    shown = {Path(words[0]).name for words in COMMANDS}
    assert shown == {"local_multiprocess.sh", "docker.sh"}
    guides = {name for page in ("tpu_vm", "gke", "slurm") for name in re.findall(r"launch/([a-z_.]+)", guide(page))}
    assert guides >= {"tpu.py", "gke.py", "slurm.sh"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_support_dry_run(words):
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
    assert result.stdout


@pytest.mark.slow
def test_example_of_several_processes_trains(tmp_path):
    """Two processes train, and each reports its own held-out rows."""
    (words,) = [words for words in COMMANDS if words[0].endswith("local_multiprocess.sh")]
    program = Path(sys.executable).parent / "t5x_like"
    few = ["--gin.TRAIN_STEPS=2", f"--gin.MODEL_DIR={tmp_path}/run"]
    start = [ROOT / words[0], f"--log_dir={tmp_path}", *words[1:-1], *few]
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    result = subprocess.run(start, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    logs = [(tmp_path / f"{index}.log").read_text() for index in (0, 1)]
    assert all("held-out loss" in log for log in logs)
    first, second = ([line for line in log.splitlines() if "(was " in line] for log in logs)
    assert first and second and first != second  # the rows differ
