"""Tests for launch/docker.sh and the contents of the image."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "--image=registry.example.com/images/t5x_like:first"


def docker(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return subprocess.run([ROOT / "launch/docker.sh", *words], cwd=cwd, capture_output=True, text=True, timeout=30)


def dry_run(*words: str, cwd: Path | None = None) -> list[str]:
    result = docker(words[0], "--dry_run", *words[1:], cwd=cwd)
    assert result.returncode == 0, result.stderr
    return shlex.split(result.stdout)


@pytest.mark.parametrize(("extra", "argument"), [("tpu", "EXTRA=tpu"), ("cuda", "EXTRA=cuda"), ("cpu", "EXTRA=")])
def test_build_passes_checkout_and_extra(extra, argument):
    words = dry_run("build", IMAGE, f"--extra={extra}")
    assert words[2:4] == ["docker", "build"] and words[-1] == str(ROOT)
    assert words[words.index("--build-arg") + 1] == argument
    assert Path(words[words.index("--file") + 1]).is_file()


@pytest.mark.parametrize(("action", "command"), [("build", ()), ("run", ("--", "t5x_like", "train"))])
def test_platform_is_x86_64_on_all_hosts(action, command, tmp_path):
    words = dry_run(action, IMAGE, *command, cwd=tmp_path)
    assert words[words.index("--platform") + 1] == "linux/amd64"


def test_push_and_run(tmp_path):
    assert dry_run("push", IMAGE) == ["docker", "push", IMAGE.partition("=")[2]]
    words = dry_run("run", IMAGE, "--extra=cuda", "--", "t5x_like", "train", "--gin.NAME=two words", cwd=tmp_path)
    assert words[-3:] == ["t5x_like", "train", "--gin.NAME=two words"]
    assert f"{tmp_path}/runs:/work/runs" in words and "--gpus" in words
    assert words[words.index("--env") + 1] == "JAX_PLATFORMS=cuda,cpu"
    assert "--env" not in dry_run("run", IMAGE, "--extra=cpu", "--", "t5x_like", "train", cwd=tmp_path)


def test_docker_is_called_and_its_exit_code_returned(tmp_path):
    (tmp_path / "docker").write_text('#!/usr/bin/env bash\necho "$DOCKER_BUILDKIT $*"\nexit 5\n')
    (tmp_path / "docker").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        [ROOT / "launch/docker.sh", "build", IMAGE], env=environment, capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 5 and result.stdout.startswith("1 build --file ")


def test_missing_docker_is_an_error(tmp_path):
    for program in ("bash", "dirname", "env"):
        (tmp_path / program).symlink_to(shutil.which(program))
    result = subprocess.run(
        [ROOT / "launch/docker.sh", "push", IMAGE], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert result.returncode == 2 and "docker not found" in result.stderr


def test_copied_files_exist_and_are_not_ignored():
    dockerfile = (ROOT / "launch/Dockerfile").read_text()
    ignored = (ROOT / "launch/Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "**"  # only the files that follow: no virtual environments, runs or data
    included = {line[1:] for line in ignored if line.startswith("!")}
    assert {"launch", "t5x_like", "data_tasks", "gin_configs"} <= included
    assert all((ROOT / name).exists() for name in included)
    copied = next(line for line in dockerfile.splitlines() if line.startswith("COPY setup.py")).split()[1:-1]
    assert set(copied) <= included


def test_dockerfile_is_lint_clean():
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if not hadolint:
        pytest.skip("hadolint not found. Install the extra `test`")
    result = subprocess.run([hadolint, ROOT / "launch/Dockerfile"], capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["build"], "--image=: not an image name"),
        (["build", "--image=no_tag"], "--image=no_tag: not an image name. Give a lower-case name with a tag"),
        (["build", IMAGE, "--extra=gpu"], "--extra=gpu: unknown extra. Give tpu, cuda or cpu"),
        (["build", IMAGE, "--", "x"], "build does not run a command"),
        (["run", IMAGE], "no command given"),
        (["build", "--tag=x"], "unknown option --tag=x of build"),
    ],
)
def test_invalid_arguments_exit_with_usage_error(words, message):
    result = docker(*words)
    assert result.returncode == 2 and message in result.stderr
