"""Settings and fixtures of all tests: fake CPU devices, fast compilation and its cache, commands, real data.

This module imports neither JAX nor TensorFlow, so tests of plain Python start immediately.
"""

import collections
import ctypes
import gc
import importlib.metadata
import importlib.util
import logging
import os
import random
import re
import sys
import time
from pathlib import Path

import program_cache
import pytest
from absl import logging as absl_logging

from t5x_like.runtime import cpu

ROOT = Path(__file__).resolve().parents[1]
CPU_DEVICES = 8
# Compiling a program takes less time than reading it from the cache if it takes less than this many seconds.
CACHE_FROM_SECONDS = 0.2

# Smoke tests: the tests of a few files that another version of Python or JAX is likely to break, and short runs. They
# need at most 90 CPU seconds.
SMOKE = re.compile(
    r"tests/(kernels/test_(cross_entropy|dropout|masks)\.py|layers/test_(captures|layers)\.py|decoding/test_sampling\.py"
    r"|data/test_(feed|features)|test_(parameters|partitioning|mesh)\.py"
    r"|test_imports\.py::test_(importing|vocabularies)|test_train\.py::test_(run_writes|resume_in_another|evaluation_res))"
)
# Files of which some tests are.
SOME_SMOKE = ("tests/test_imports.py", "tests/test_train.py")
# Marker -> packages that its tests import, which are not in the extra `test`, and the extra that installs them.
NEEDED = {
    "parity": (("torch", "transformers"), "parity"),
    "beam": (("apache_beam",), "cache"),
    "clean": (("datasketch", "gcld3", "langdetect", "langdetect_rs", "punkt", "tldextract", "trafilatura"), "clean"),
}
# Name of the CPU time in the reports of tests, and number of files whose time is printed.
CPU = "cpu"
CPU_START = pytest.StashKey[float]()
# The files that a worker has begun.
BEGUN = pytest.StashKey[list[Path]]()
NUM_SHOWN = 10
# Compiled programs of tests are freed if a process has more memory than this.
FREED_FROM_GIB = 4.5
# Number of configurations per family that are compared with the reference by default; `-m parity` compares all.
PARITY_CONFIGURATIONS = 2

# Files with long tests. They start first, so that no worker is still busy with them at the end.
LONG = tuple(
    f"test_{name}"
    for name in (
        "distillation_journeys",
        "journeys",
        "exports",
        "lora",
        "resume",
        "distributed",
        "cached_training",
        "families",
        "base",
        "seqio_feed",
        "cache",
        "commands",
        "ablate",
        "train",
        "infer",
    )
)


# Collections of garbage go through all compiled programs of a worker. With the thresholds of Python, they take a tenth
# of the time of the tests.
gc.set_threshold(50_000, 10, 10)


def _compilation_cache() -> Path:
    """Returns a directory outside the repository, so that tests of a fresh clone find compiled programs."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "t5x_like" / "tests" / cpu.fingerprint()


# Child processes inherit these settings, but not the number of devices: a command has one CPU device, as for a user.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Tests compile many small programs and run each a few times. These flags reduce compilation time to a quarter.
# `XLA_FLAGS= pytest` compiles programs as users do.
FAST_COMPILATION = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
]
if int(importlib.metadata.version("jaxlib").split(".")[1]) < 11:  # later versions do not have this flag
    FAST_COMPILATION.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(FAST_COMPILATION))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_compilation_cache()))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(CACHE_FROM_SECONDS))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# Buckets are opened by fsspec, because TensorFlow cannot use an emulator. etils reads this variable only once.
os.environ.setdefault("EPATH_USE_TF", "0")


class _ConfigureJax:
    """Sets the number of fake devices when JAX is first imported, because it is fixed after their first use."""

    def find_spec(self, name, path=None, target=None):
        if name != "jax":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_configure(module):
            execute(module)
            module.config.update("jax_num_cpu_devices", CPU_DEVICES)
            program_cache.install()

        spec.loader.exec_module = execute_and_configure
        return spec


sys.meta_path.insert(0, _ConfigureJax())


def pytest_addoption(parser):
    parser.addoption("--shuffle_files", type=int, metavar="SEED", help="run the test files in a random order")
    parser.addoption("--until", type=float, metavar="TIME", help="skip files that begin after TIME, seconds since 1970")


def pytest_ignore_collect(collection_path, config):
    """Leaves out the files without smoke tests for `-m smoke`, because importing them takes longer than the tests."""
    if config.option.markexpr == "smoke" and collection_path.suffix == ".py":
        path = collection_path.relative_to(ROOT).as_posix()
        return None if SMOKE.match(f"{path}::") or path in SOME_SMOKE else True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks tests by the rules above, skips tests of missing extras, and sorts `LONG` files first."""
    seed = config.getoption("shuffle_files")
    if seed is None:
        items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))
    else:
        paths = sorted({item.path for item in items})
        random.Random(seed).shuffle(paths)
        order = {path: (path.stem not in LONG, number) for number, path in enumerate(paths)}
        items.sort(key=lambda item: order[item.path])
    for item in items:
        if reason := reason_to_skip({mark.name for mark in item.iter_markers()}):
            item.add_marker(pytest.mark.skip(reason=reason))
        path = item.path.relative_to(ROOT).as_posix()
        if SMOKE.match(f"{path}::{item.name}") and not item.get_closest_marker("slow"):
            item.add_marker("smoke")
        if item.get_closest_marker("parity"):
            given = item.callspec.params if hasattr(item, "callspec") else {}
            # tests/models/test_families.py compares scanned layers with unrolled ones.
            if max(given.get("pair", 0), given.get("seed", 0)) >= PARITY_CONFIGURATIONS or given.get("scan"):
                item.add_marker("slow")


def _cpu_seconds() -> float:
    """Returns the CPU time of this process and of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[CPU_START] = _cpu_seconds()
    until, begun = item.config.getoption("until"), item.config.stash.setdefault(BEGUN, [])
    if until is not None and item.path not in begun:
        if time.time() > until:
            pytest.skip("not reached before --until")
        begun.append(item.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Frees compiled programs after a file once they need much memory. Those of all files would need 10 GiB."""
    result = yield
    is_last = nextitem is None or nextitem.path != item.path
    if is_last and "jax" in sys.modules and _resident_gib() > FREED_FROM_GIB:
        sys.modules["jax"].clear_caches()
        program_cache.PROGRAMS.clear()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # returns the freed memory to the system
    return result


def _resident_gib() -> float:
    """Returns the memory that this process has, or 0 if the system is not Linux."""
    statistics = Path("/proc/self/statm")
    return int(statistics.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30 if statistics.exists() else 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Notes the CPU time of a test, with its fixtures, in its last report."""
    report = yield
    if call.when == "teardown" and CPU_START in item.stash:
        report.user_properties.append((CPU, f"{_cpu_seconds() - item.stash[CPU_START]:.2f}"))
    return report


def pytest_terminal_summary(terminalreporter):
    """Prints the most expensive files, because a wall time depends on what else the machine does."""
    seconds = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == CPU:
                    seconds[report.nodeid.partition("::")[0]] += float(value)
    if len(seconds) > NUM_SHOWN:
        most = seconds.most_common(NUM_SHOWN)
        dearest = ", ".join(f"{path.removeprefix('tests/')} {value:.0f}" for path, value in most)
        terminalreporter.write_line(f"{seconds.total():.0f} CPU seconds of tests; the most expensive files: {dearest}")


def reason_to_skip(markers: set[str], find=importlib.util.find_spec) -> str | None:
    """Returns why a test with these markers cannot run in this environment, or None if it can."""
    for marker, (packages, extra) in NEEDED.items():
        if marker in markers and (missing := [package for package in packages if find(package) is None]):
            return f"{', '.join(missing)} not installed: pip install -e '.[test,{extra}]' -c constraints.txt"
    return None


@pytest.fixture(autouse=True)
def _restore_logging():
    """Restores levels and handlers of the root logger and of absl's, which commands change for their process."""
    loggers = [logging.getLogger(), absl_logging.get_absl_logger()]
    before = [(list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def _clear_gin():
    """Removes the bindings of the test: they may refer to functions that it has replaced."""
    yield
    if "gin" in sys.modules:
        sys.modules["gin"].clear_config()


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The directory of real data in T5X_LIKE_TEST_DATA; skips the test if the variable is not set."""
    directory = os.environ.get("T5X_LIKE_TEST_DATA")
    if not directory:
        pytest.skip("needs real data: set T5X_LIKE_TEST_DATA to its directory")
    path = Path(directory)
    if not path.is_dir():
        pytest.fail(f"T5X_LIKE_TEST_DATA={directory} is not a directory")
    return path.resolve()


@pytest.fixture
def run_command(monkeypatch, capfd):
    """Returns `run_command(["train", …]) -> (exit code, output)`, which runs a command line in this process.

    The command has one device unless it is given --cpu_devices=8. Module search path, environment and logging of the
    process are restored after it.
    """
    import jax

    from t5x_like import cli
    from t5x_like.data import task_arguments

    devices = jax.devices

    monkeypatch.setattr(sys, "path", list(sys.path))
    environment = dict(os.environ)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def run(arguments):
        task_arguments.reset()  # another command of this process may have set some
        capfd.readouterr()
        if any(argument.startswith("--cpu_devices") for argument in arguments):
            monkeypatch.setattr(jax, "devices", devices)
        else:
            monkeypatch.setattr(jax, "devices", lambda *platform: devices(*platform)[:1])
        try:
            code = cli.main(arguments)
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
            os.environ.clear()
            os.environ.update(environment)
        captured = capfd.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.fixture(scope="session")
def letters_run(tmp_path_factory):
    """The directory of a run that has learned to copy letters; see `letters`, whose task is registered meanwhile."""
    import letters

    with letters.registered():
        directory = str(tmp_path_factory.mktemp("letters") / "run")
        letters.train_run(directory)
        yield directory


@pytest.fixture(scope="session")
def write_cache():
    """Returns `_write_cache`, which writes a cache of synthetic rows without TensorFlow."""
    return _write_cache


def _write_cache(directory, *, lengths, shards, spec=None, task="a_task", first=1, examples_per_row=1, **settings):
    """Writes a cache whose row n, counted from `first`, has the target n, and two inputs if n is odd, otherwise one.

    Args:
      directory: Directory of the split; it must not exist.
      lengths: Task feature -> length.
      shards: Pass and number of rows of each file.
      spec: Features to store; an encoder-decoder's by default.
      task: Name of the task.
      first: Target of the first row.
      examples_per_row: Number of examples of each row according to the manifest.
      **settings: Further settings of the manifest.
    """
    import numpy as np
    from array_record.python.array_record_module import ArrayRecordWriter

    from t5x_like.data import batches, specs
    from t5x_like.data.cached import Layout, Manifest, Shard, manifest
    from t5x_like.data.cached.rows import encode

    spec = spec or specs.ENCODER_DECODER
    layout = Layout.of(spec, lengths, pack=False)
    dtypes = ("<u2",) * len(layout.values)
    written, number = [], first
    for index, (number_of_pass, rows) in enumerate(shards):
        numbers = np.arange(number, number + rows)
        tokens = {name: np.zeros((rows, length), np.int32) for name, length in lengths.items()}
        if "inputs" in tokens:
            tokens["inputs"][:, :2] = np.stack([numbers, numbers * (numbers % 2)], axis=1)
        tokens["targets"][:, 0] = numbers
        file = f"pass-{number_of_pass:03d}/{index}.array_record"
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for record in encode(batches.from_arrays(layout.storage_spec(spec), tokens), layout, dtypes):
            writer.write(record)
        writer.close()
        digest = manifest.checksum(str(path))
        written.append(
            Shard(file, rows, path.stat().st_size, digest, number_of_pass, rows * examples_per_row, (rows, rows))
        )
        number += rows
    settings = {"task": task, "split": directory.name, "module": None, "task_arguments": None, **settings}
    vocabularies = {name: {"kind": "a", "ids": 100, "sample": ""} for name in lengths}
    Manifest(settings, layout, dtypes, vocabularies, tuple(written)).write(str(directory))
