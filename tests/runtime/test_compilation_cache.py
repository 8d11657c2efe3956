"""The persistent compilation cache: a second start finds its programs, and a broken cache does not stop a run."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from t5x_like import cli, paths
from t5x_like.errors import UserError
from t5x_like.runtime import compilation_cache, cpu

pytestmark = pytest.mark.notf


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    """Disables the cache of the tests, and stores programs however fast they compile."""
    wanted = {"jax_compilation_cache_dir": None, "jax_persistent_cache_min_compile_time_secs": 0}
    before = {name: getattr(jax.config, name) for name in wanted}
    configure(wanted)
    yield
    configure(before)


@pytest.fixture
def lines(monkeypatch):
    """Returns the log lines."""
    found = []
    monkeypatch.setattr(logging, "log", lambda level, text, *values: found.append(text % values))
    monkeypatch.setattr(logging, "warning", lambda text, *values: found.append(text % values))
    return found


def configure(values):
    for name, value in values.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()


@jax.jit
def program(x):
    return jax.nn.softmax(jnp.tanh(x @ x.T) @ x)


def start(directory):
    """Compiles a program or finds it in the cache, and returns its result."""
    jax.clear_caches()
    with compilation_cache.persistent(directory):
        return np.asarray(program(jnp.linspace(-1, 1, 64).reshape(8, 8)))


def test_second_start_finds_its_programs_and_computes_the_same_bits(tmp_path, lines):
    first, second = start(str(tmp_path)), start(str(tmp_path))
    assert first.tobytes() == second.tobytes()
    directory = paths.join(tmp_path, cpu.fingerprint())
    stored = len(list((tmp_path / cpu.fingerprint()).glob("*-cache")))
    assert stored > 0
    assert lines == [
        f"compilation cache {directory}: 0 programs found, {stored} compiled",
        f"compilation cache {directory}: {stored} programs found, 0 compiled",
    ]


def test_cache_size_is_limited_within_the_context(tmp_path):
    with compilation_cache.persistent(str(tmp_path)):
        assert jax.config.jax_compilation_cache_max_size == compilation_cache.MAX_BYTES
    assert (jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size) == (None, -1)


def test_unchanged_use_is_not_logged_twice(tmp_path, lines):
    jax.clear_caches()
    with compilation_cache.persistent(str(tmp_path)):
        program(jnp.ones((8, 8)))
        compilation_cache.log_use()
        compilation_cache.log_use()
    assert len(lines) == 1


def test_end_of_a_command_does_not_show_the_cache(tmp_path, caplog):
    """The last line of a command is its result."""
    with caplog.at_level("INFO", logger="absl"):
        start(str(tmp_path))
    assert "compilation cache" not in caplog.text
    with caplog.at_level("DEBUG", logger="absl"):
        start(str(tmp_path))
    assert "compilation cache" in caplog.text


def test_unwritable_cache_directory_warns_once(tmp_path, lines):
    (tmp_path / "file").touch()
    start(str(tmp_path / "file"))
    assert len(lines) == 1
    assert f"compilation cache {tmp_path}/file" in lines[0] and "not writable" in lines[0]


def test_environment_variable_takes_precedence(tmp_path, lines):
    configure({"jax_compilation_cache_dir": str(tmp_path / "of jax")})  # as JAX_COMPILATION_CACHE_DIR does
    start(str(tmp_path / "ours"))
    assert not (tmp_path / "ours").exists()
    assert lines[0].startswith(f"compilation cache {tmp_path}/of jax: 0 programs found")


def test_incomplete_programs_are_removed(tmp_path):
    start(str(tmp_path))
    directory = tmp_path / cpu.fingerprint()
    whole = len(list(directory.glob("*-cache")))
    (directory / "half-cache").write_bytes(b"half")
    start(str(tmp_path))
    assert not (directory / "half-cache").exists() and len(list(directory.glob("*-cache"))) == whole


def test_unreadable_program_is_recompiled(tmp_path):
    expected = start(str(tmp_path))
    for path in (tmp_path / cpu.fingerprint()).glob("*-cache"):
        path.write_bytes(path.read_bytes()[:10])
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache entry"):
        np.testing.assert_array_equal(start(str(tmp_path)), expected)


@pytest.mark.parametrize(
    ("macros", "run_directory", "expected"),
    [
        ({}, None, "/caches/t5x_like/compilation_cache"),
        ({}, "runs/first", "/caches/t5x_like/compilation_cache"),
        ({}, "gs://my-bucket/runs/first", "gs://my-bucket/runs/first/compilation_cache"),
        ({"COMPILATION_CACHE_DIR": None}, "gs://my-bucket/runs/first", None),
        ({"COMPILATION_CACHE_DIR": "/scratch/cache"}, "gs://my-bucket/runs/first", "/scratch/cache"),
        ({"COMPILATION_CACHE_DIR": "gs://my-bucket/cache"}, None, "gs://my-bucket/cache"),
        ({"COMPILATION_CACHE_DIR": "cache"}, None, f"{os.getcwd()}/cache"),
    ],
)
def test_choose_directory(macros, run_directory, expected, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert compilation_cache.choose_directory(macros, run_directory) == expected


def test_default_directory_is_in_home(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    expected = "/home/somebody/.cache/t5x_like/compilation_cache"
    assert compilation_cache.choose_directory({}, None) == expected


@pytest.mark.parametrize("value", [3, True, ""])
def test_invalid_directory_raises(value):
    with pytest.raises(UserError, match="COMPILATION_CACHE_DIR=.*: not a path"):
        compilation_cache.choose_directory({"COMPILATION_CACHE_DIR": value}, None)


def test_commands_that_compile_read_the_macro_and_do_not_store_it(tmp_path, monkeypatch, lines):
    (tmp_path / "mine.py").write_text(
        "import jax\ndef command(run_config=None):\n    assert 'COMPILATION' not in run_config.text\n"
        "    jax.clear_caches()\n    jax.jit(lambda x: x * 3)(jax.numpy.ones(3))\n"
    )
    (tmp_path / "empty.gin").touch()
    entry = dataclasses.replace(
        cli.COMMANDS["train"], function="mine.command", default_gin_file=str(tmp_path / "empty.gin")
    )
    monkeypatch.setitem(cli.COMMANDS, "train", entry)
    monkeypatch.setattr("t5x_like.cli.startup.log", lambda level: None)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["train", f"--gin.COMPILATION_CACHE_DIR={tmp_path / 'cache'}"]
    assert [cli.main(words), cli.main(words)] == [0, 0]
    first, second = reports = [line for line in lines if "programs found" in line]
    assert "0 programs found" in first and second.endswith(" programs found, 0 compiled")
    assert cli.main(["train", "--gin.COMPILATION_CACHE_DIR=None"]) == 0
    assert [line for line in lines if "programs found" in line] == reports
    compiling = {name for name, command in cli.COMMANDS.items() if command.compiles}
    writing = {"train", "distill", "ablate", "cache", "cache_logits"}
    assert compiling == writing | {"eval", "infer", "embed", "analyze", "augment", "plan", "prune"}


@pytest.mark.full
def test_processes_share_a_cache(tmp_path, recwarn):
    """Tests the lock of the cache with two processes that store and read the same programs."""
    code = (
        "import sys, jax\nfrom t5x_like.runtime import compilation_cache\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "with compilation_cache.persistent(sys.argv[1]):\n"
        "    print(flush=True)\n"
        "    for n in range(1, 9): jax.jit(lambda x: x @ x.T + n)(jax.numpy.ones((n, n)))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()  # the process has started
        with compilation_cache.persistent(str(tmp_path)):
            for n in range(1, 9):
                jax.jit(lambda x, n=n: x @ x.T + n)(jnp.ones((n, n)))
    assert process.returncode == 0
    assert [str(warning.message) for warning in recwarn if "compilation cache" in str(warning.message)] == []
