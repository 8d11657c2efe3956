"""What every test shares: JAX on eight fake CPU devices, a persistent compile cache, and the folder of real data.

Nothing here imports JAX or TensorFlow, so tests of plain Python start at once.
"""

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CPU_DEVICES = 8
# Below this many seconds a program compiles faster than a cached one is found, read and loaded.
CACHE_FROM_SECONDS = 0.2

# The library without its commands: what another version of Python or JAX would break first.
CORE = re.compile(
    r"tests/((kernels|layers|models|objectives|decoding|data)/"
    r"|test_(parameters|partitioning|schedules|optimizers|step|checkpoints|imports))"
)

# Files that start many commands, or long ones: begun first, so that no worker is left alone with them at the end.
LONG = ("test_readme", "test_resume", "test_distributed", "test_cache", "test_ablate", "test_train", "test_infer")

# Commands that tests start inherit these; the number of devices they do not: a command has the one CPU a user has.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(CACHE_FROM_SECONDS))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


class _ConfigureJax:
    """Gives JAX its fake devices in the moment it is first imported, whoever imports it: later is too late."""

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

        spec.loader.exec_module = execute_and_configure
        return spec


sys.meta_path.insert(0, _ConfigureJax())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks the tests of the library itself as `core`, before -m chooses among the marks; puts `LONG` files first."""
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))
    for item in items:
        if CORE.match(item.path.relative_to(ROOT).as_posix()) and not item.get_closest_marker("slow"):
            item.add_marker("core")


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real data, named by T5X_LIKE_TEST_DATA; the test is skipped where it is not set."""
    folder = os.environ.get("T5X_LIKE_TEST_DATA")
    if not folder:
        pytest.skip("needs real data: set T5X_LIKE_TEST_DATA to its folder")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"T5X_LIKE_TEST_DATA={folder} is not a folder")
    return path.resolve()


@pytest.fixture(scope="session")
def write_cache():
    """Writes a cache of made-up rows to a folder; needs no TensorFlow."""
    return _write_cache


def _write_cache(folder, *, lengths, shards, spec=None):
    """The row number n, from 1 on, has the target n; its inputs are two items where n is odd, else one.

    Args:
      folder: of the split, not there yet.
      lengths: task feature -> items.
      shards: of each file its pass and its rows.
      spec: what is read from it; an encoder's and a decoder's features by default.
    """
    import numpy as np
    from array_record.python.array_record_module import ArrayRecordWriter

    from t5x_like.data import batches, features
    from t5x_like.data.cached import Layout, Manifest, Shard, manifest
    from t5x_like.data.cached.rows import encode

    spec = spec or features.ENCODER_DECODER
    layout = Layout.of(spec, lengths, pack=False)
    dtypes = ("<u2",) * len(layout.values)
    written, number = [], 1
    for index, (number_of_pass, rows) in enumerate(shards):
        numbers = np.arange(number, number + rows)
        tokens = {name: np.zeros((rows, length), np.int32) for name, length in lengths.items()}
        if "inputs" in tokens:
            tokens["inputs"][:, :2] = np.stack([numbers, numbers * (numbers % 2)], axis=1)
        tokens["targets"][:, 0] = numbers
        file = f"pass-{number_of_pass:03d}/{index}.array_record"
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for record in encode(batches.from_arrays(layout.stored(spec), tokens), layout, dtypes):
            writer.write(record)
        writer.close()
        digest = manifest.checksum(str(path))
        written.append(Shard(file, number_of_pass, rows, rows, (rows, rows), path.stat().st_size, digest))
        number += rows
    settings = {"task": "a_task", "module": None, "task_arguments": None}
    vocabularies = {name: {"kind": "a", "ids": 100, "sample": ""} for name in lengths}
    Manifest(settings, layout, dtypes, vocabularies, tuple(written)).write(str(folder))
