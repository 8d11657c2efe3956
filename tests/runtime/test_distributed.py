"""Runs of several processes: two real processes on this machine, each with two fake CPU devices."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import copying_run
import jax
import numpy as np
import pytest
from several_processes import (
    CONFIGS,
    HEARTBEAT_SECONDS,
    finish,
    free_port,
    losses,
    output,
    start,
    start_processes,
    wait_for_rows,
)

from t5x_like import eval as eval_command
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.data.seqio_feed import SeqIOSource
from t5x_like.loading import open_model
from t5x_like.metrics import read_metrics, read_starts
from t5x_like.models.t5 import T5Config
from t5x_like.objectives.sequence_to_sequence import SequenceToSequence
from t5x_like.partitioning import Partitioner
from t5x_like.runtime import distributed, protocol
from t5x_like.training.runs.run_directory import read_status

pytestmark = [pytest.mark.full, pytest.mark.notf]

LENGTHS = {"inputs": 8, "targets": 8}


def divergences(directory):
    return {row["step"]: row["kl"] for row in read_metrics(str(directory)) if "kl" in row}


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory, write_cache):
    directory = tmp_path_factory.mktemp("cache")
    lengths = {"inputs": 6, "targets": 4}
    # 64 rows are read, 18 of them twice.
    write_cache(directory / "train", lengths=lengths, shards=((0, 17), (0, 16), (1, 13)))
    write_cache(directory / "validation", lengths=lengths, shards=((0, 12),))
    return directory


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Returns a run directory of a small model, which the runs from the cache learn from."""
    directory = tmp_path_factory.mktemp("teacher")
    copying_run.run(directory, model=dataclasses.replace(copying_run.CONFIG, vocab_size=100), total=1)
    return directory


def start_distilled(directory, cache_dir, teacher, *flags, **settings):
    """Starts a distillation from a cache. It has the losses of a run without a teacher and the divergence."""
    losses = ["--gin_file=distillation/hinton.gin", f"--gin.TEACHER={teacher}", f"--gin.CACHE_DIR={cache_dir}"]
    return start(directory, *losses, *flags, run="distill", gin_file="cached.gin", **settings)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory, cache_dir, teacher):
    """Returns the run of one process with four devices, saved at steps 4 and 8."""
    directory = tmp_path_factory.mktemp("one") / "run"
    codes = finish(start_distilled(directory, cache_dir, teacher, count=1, devices=4))
    assert codes == [0], output(directory, 0)[-3000:]
    return directory


# Two replicas, of which the first reads the checkpoint. Each process reads half of every batch.
REPLICAS = ("--gin.ICI={'fsdp': -1}", "--gin.DCN={'data': -1}", "--gin.Checkpoints.restore_one_replica=True")
# Each process reads the whole batch.
TENSORS = ("--gin.PARTITIONING=fsdp_tp", "--gin.ICI={'tensor': 4}")


@pytest.mark.parametrize("mesh", [REPLICAS, TENSORS], ids=["replicas", "tensors"])
def test_two_processes_resume_the_run_of_one_with_equal_losses(one_process, cache_dir, teacher, tmp_path, mesh):
    directory = tmp_path / "run"
    shutil.copytree(one_process, directory)
    shutil.rmtree(directory / "checkpoints" / "8")
    codes = finish(start_distilled(directory, cache_dir, teacher, *mesh))
    assert codes == [0, 0], output(directory, 1)[-3000:]
    assert "restored step 4" in output(directory, 0) and "process 1 of 2" in output(directory, 1)
    one_reads = f"the processes [0] read {directory}/checkpoints/4/state and broadcast it to 2 replicas"
    assert (one_reads in output(directory, 1)) == (mesh == REPLICAS)
    expected, found = losses(one_process), losses(directory)
    assert found.keys() == expected.keys() and len(found) == 10  # eight steps and two evaluations
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=2e-5)
    expected, found = divergences(one_process), divergences(directory)
    assert found.keys() == expected.keys() == set(range(1, 9)) and min(expected.values()) > 1e-3
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=2e-5)
    assert read_status(str(directory))["state"] == "finished"
    assert [start["processes"] for start in read_starts(str(directory))] == [1, 2]
    assert (directory / "log.txt").read_text().count(" I command line: ") == 2  # process 0 of each start
    # Each process has written its position, and a process with another mesh can read the arrays.
    assert {entry.name for entry in (directory / "checkpoints" / "8" / "feed").iterdir()} >= {
        "process_0_of_2.bin",
        "process_1_of_2.bin",
    }
    here = restored_norm(directory, Partitioner(rules="fsdp", ici={"fsdp": 8}))
    assert here == pytest.approx(restored_norm(directory, Partitioner(devices=jax.devices()[:1])), rel=1e-6)


def test_two_processes_run_each_command(one_process, cache_dir, teacher, tmp_path):
    """One start runs all commands but `train` and `distill`, and `infer`, which have tests of their own."""
    run = tmp_path / "run"
    shutil.copytree(one_process, run)
    configs = [f"--gin_search_paths={CONFIGS}", f"--gin.CACHE_DIR={cache_dir}"]
    for name in ("cached.gin", "run.gin"):
        shutil.copy(CONFIGS / name, tmp_path)  # the files of a cell are read from the working directory
    settings = {"TRAIN_STEPS": 4, "CACHE_DIR": str(cache_dir)}
    grid = ["--gin.GRID={'a row': {'a column': 'cached.gin'}}", "--gin.GIN_FILES=()", f"--gin.SETTINGS={settings}"]
    of_run = ["eval", "--cpu_devices=2", f"--gin.MODEL_DIR={run}"]
    commands = [
        of_run,
        [*of_run, "--gin.CHECKPOINT=watch"],
        ["cache_logits", f"--cache_dir={cache_dir}", f"--teacher={teacher}", f"--output={tmp_path / 'logits'}"],
        ["bench", *configs, "--gin_file=cached.gin", "--steps=1", "--warmup_steps=1", "--parts=False"],
        ["ablate", f"--output={tmp_path / 'grid'}", *grid],
    ]
    script = [sys.executable, str(CONFIGS / "commands.py"), *map(json.dumps, commands)]
    codes = finish(start_processes(run, script), seconds=240)
    assert codes == [0, 0], output(run, 0)[-3000:] + output(run, 1)[-3000:]
    results = json.loads((run / "eval/results.json").read_text())
    assert [result["step"] for result in results] == [4, 8]  # of `watch`, which does not repeat the latest one
    stored = losses(run)[8, "validation"]
    np.testing.assert_allclose([*results[1]["evaluations"].values()][0]["loss"], stored, rtol=2e-5)
    assert (tmp_path / "grid/table.md").exists() and list((tmp_path / "logits").rglob("manifest.json"))


def restored_norm(directory, partitioner):
    """Returns the norm of all parameters of the last checkpoint, restored in this process."""
    reader = Checkpoints(str(directory / "checkpoints"), read_only=True)
    shapes = {name: shape for name, shape in reader.shapes(8).items() if name.startswith("params/")}
    like = {name: jax.ShapeDtypeStruct(shape, np.float32) for name, shape in shapes.items()}
    restored = reader.restore(8, like, partitioner)
    reader.close()
    assert len(restored) > 10
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(leaf))) for leaf in restored.values())))


def test_time_and_a_signal_to_one_process_save_and_stop_all_after_the_same_step(tmp_path):
    directory = tmp_path / "run"
    mesh = ["--gin.ICI={'fsdp': -1}", "--gin.DCN={'data': -1}"]  # two machines with one process each
    saves = ["--gin.SAVE_PERIOD=None", "--gin.Periods.save_seconds=0.5"]
    processes = start(directory, *mesh, *saves, "--gin.TRAIN_STEPS=100000", T5X_LIKE_SUPERVISED="1")
    wait_for_rows(directory, 30, processes)
    processes[1].send_signal(signal.SIGTERM)
    assert finish(processes) == [75, 75], output(directory, 0)[-3000:]
    status = read_status(str(directory))
    assert status["state"] == "preempted"
    earlier, last = Checkpoints(str(directory / "checkpoints"), read_only=True).steps()[-2:]
    assert earlier < last == status["step"]
    assert max(step for step, _ in losses(directory)) == status["step"]
    assert "mesh data=2, fsdp=2" in output(directory, 1)


def test_killed_process_ends_the_other_with_an_explanation(tmp_path):
    directory = tmp_path / "run"
    processes = start(directory, "--gin.TRAIN_STEPS=100000", "--gin.SAVE_PERIOD=50000")
    wait_for_rows(directory, 3, processes)
    killed = time.monotonic()
    processes[1].kill()
    codes = finish(processes, seconds=3 * HEARTBEAT_SECONDS)
    assert time.monotonic() - killed < 2 * HEARTBEAT_SECONDS
    assert codes[1] == -signal.SIGKILL and codes[0] == protocol.LOST_PEER
    assert "has lost another process" in output(directory, 0) or "another task died" in output(directory, 0)


def test_process_that_cannot_write_ends_all_with_its_reason(tmp_path):
    directory = tmp_path / "run"
    processes = start(directory, "--gin.TRAIN_STEPS=100000", "--gin.SAVE_PERIOD=20")
    wait_for_rows(directory, 30, processes)  # the first checkpoint is written by now
    # Less than its part of the arrays, and more than its other files.
    resource.prlimit(processes[1].pid, resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
    assert finish(processes, seconds=60) == [1, 1]
    reason = f"process 1 of 2 cannot write its part of a checkpoint: {os.strerror(errno.EFBIG)}. The checkpoints"
    status = read_status(str(directory))
    assert status["state"] == "failed" and reason in status["reason"]
    assert reason in output(directory, 0) and reason in output(directory, 1)
    newest = Checkpoints(str(directory / "checkpoints"), read_only=True).latest()
    assert 20 <= newest < status["step"]


@contextlib.contextmanager
def collectives(then="pass"):
    """Starts two processes that run a loop of collectives, which starts faster than training, and kills them."""
    code = (
        "import jax, numpy as np; from jax.experimental import multihost_utils\n"
        "from t5x_like.runtime import distributed\n"
        "distributed.join()\n"
        "try:\n"
        "  with distributed.with_watchdog():\n"
        "    while True:\n"
        "      multihost_utils.process_allgather(np.zeros(1)); print('together', flush=True)\n"
        f"      {then}\n"
        "except Exception as error: distributed.exit_without_waiting(getattr(error, 'exit_code', 1), error)\n"
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        distributed.COORDINATOR: f"127.0.0.1:{free_port()}",
        distributed.NUM_PROCESSES: "2",
        distributed.HEARTBEAT: str(HEARTBEAT_SECONDS),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment | {distributed.PROCESS_ID: str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        assert any(line == "together\n" for line in processes[0].stdout)
        yield processes
    finally:
        for process in processes:
            process.kill()  # also ends a suspended process
            process.wait()
            process.stdout.close()


def test_suspended_process_ends_the_other_with_an_explanation():
    with collectives() as processes:
        processes[1].send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        log = processes[0].communicate(timeout=3 * HEARTBEAT_SECONDS)[0]
        assert time.monotonic() - stopped < 2 * HEARTBEAT_SECONDS
    assert processes[0].returncode == protocol.LOST_PEER
    assert "has lost another process" in log or "another task died" in log, log[-2000:]


def test_error_of_a_process_is_the_reason_of_the_others():
    with collectives("if jax.process_index() == 1: raise ValueError('broken disk')") as processes:
        log = processes[0].communicate(timeout=3 * HEARTBEAT_SECONDS)[0]
    assert "process 1 of 2 has failed: broken disk" in log, log[-2000:]
    assert processes[0].returncode == protocol.FAILURE  # the run has failed, and no process is lost


def test_abort_of_a_process_loses_a_peer_for_the_others_only():
    with collectives("if jax.process_index() == 1: import os; os.abort()") as processes:
        assert [process.wait(3 * HEARTBEAT_SECONDS) for process in processes] == [protocol.LOST_PEER, -signal.SIGABRT]


def test_process_whose_peer_does_not_join_exits():
    code = "from t5x_like.runtime import distributed; distributed.ARRIVAL_SECONDS = 1; distributed.join(*{}, 2, 1)"
    command = [sys.executable, "-c", code.format((f"127.0.0.1:{free_port()}",))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == protocol.LOST_PEER and "has not joined" in result.stderr


def test_processes_with_different_configurations_or_directories_raise(tmp_path):
    directory = tmp_path / "run"
    code = (
        "import sys; from t5x_like.runtime import distributed; distributed.join();"
        "import jax; index = str(jax.process_index());"
        "distributed.check_agreement(sys.argv[1] + (index if sys.argv[2] == 'directory' else ''),"
        "index if sys.argv[2] == 'text' else '')"
    )
    for what, message in (
        ("text", "processes [1] of 2 have another configuration"),
        ("directory", "do not see the files of process 0"),
    ):
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            distributed.COORDINATOR: f"127.0.0.1:{free_port()}",
            distributed.NUM_PROCESSES: "2",
        }
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(directory), what],
                env=environment | {distributed.PROCESS_ID: str(index)},
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(2)
        ]
        errors = [process.communicate(timeout=120)[1] for process in processes]
        # One process was seen to crash in the shutdown of JAX, after its message.
        assert {1} <= {process.returncode for process in processes} <= {1, -signal.SIGSEGV}
        assert all(message in error for error in errors), errors
    assert not list(tmp_path.rglob(".shared-*"))


def test_processes_with_different_data_raise(tmp_path, write_cache):
    code = (
        "from t5x_like.runtime import distributed; distributed.join();"
        "from t5x_like.data import provenance; from t5x_like.data.cached import CachedSource;"
        "source = CachedSource(cache_dir='cache', batch_size=8);"
        "provenance.check_agreement({'train': provenance.describe(source)}, 'digest')"
    )
    address = f"127.0.0.1:{free_port()}"
    processes = []
    for index in range(2):
        write_cache(
            tmp_path / f"{index}/cache/train", lengths={"inputs": 6, "targets": 4}, shards=((0, 8),), first=index
        )
        joined = {distributed.COORDINATOR: address, distributed.NUM_PROCESSES: "2", distributed.PROCESS_ID: str(index)}
        environment = os.environ | joined | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", code]
        processes.append(
            subprocess.Popen(command, env=environment, cwd=tmp_path / str(index), stderr=subprocess.PIPE, text=True)
        )
    for process in processes:
        error = process.communicate(timeout=120)[1]
        assert process.returncode == 1
        assert "process 1 of 2 has other data than process 0, train: task a_task, fingerprint " in error, error


@pytest.mark.parametrize(
    "given, environment, message",
    [
        (("10.0.0.1:1", 2, None), {}, "--process_id: missing"),
        ((None, None, None), {distributed.NUM_PROCESSES: "2"}, "--coordinator_address, --process_id: missing"),
        (("10.0.0.1", 2, 0), {}, "not HOST:PORT"),
        (("10.0.0.1:1", 2, 2), {}, "--process_id=2: out of range. Give 0 to 1"),
        ((None, None, None), {distributed.PROCESS_ID: "one"}, "T5X_LIKE_PROCESS_ID=one: not an integer"),
    ],
)
def test_invalid_process_flags_raise(given, environment, message, monkeypatch):
    for name in (distributed.COORDINATOR, distributed.NUM_PROCESSES, distributed.PROCESS_ID):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        distributed.join(*given)


def test_cpu_process_without_flags_runs_alone(monkeypatch):
    for name in (distributed.COORDINATOR, distributed.NUM_PROCESSES, distributed.PROCESS_ID):
        monkeypatch.delenv(name, raising=False)
    assert distributed.join() == 1
    assert not jax.distributed.is_initialized()


def test_task_metrics_of_two_processes_are_those_of_one(tmp_path, monkeypatch):
    """11 examples in batches of 4, of which each process reads 2: the last batch is not full."""
    pytest.importorskip("seqio")
    run = tmp_path / "run"
    codes = finish(start(run, gin_file="echo.gin"), seconds=300)
    assert codes == [0, 0], output(run, 0)[-3000:] + output(run, 1)[-3000:]
    row = [row for row in read_metrics(str(run)) if row["split"] == "validation"][-1]
    monkeypatch.syspath_prepend(CONFIGS)
    config = T5Config(
        vocab_size=384, embed_dim=16, mlp_dim=32, num_heads=4, head_dim=4, encoder_layers=1, decoder_layers=1
    )
    task = {"mixture_or_task_name": "echo", "module": "echo_task", "task_feature_lengths": {"inputs": 4, "targets": 4}}
    here = Partitioner(devices=jax.devices()[:1], ici={"data": 1})
    results = eval_command.evaluate(
        open_model(str(run), model=config, objective=SequenceToSequence(), partitioner=here),
        data=SeqIOSource(**task, batch_size=4, pack=False, split="validation"),
    )
    assert {"loss", "echo/exact", "echo/confidence", "echo/likelihood"} <= set(results)
    np.testing.assert_allclose([row[name] for name in results], list(results.values()), rtol=1e-4)


def start_tiered(directory, *flags):
    """Starts a run with checkpoints on each host after every other step, and in MODEL_DIR after step 2 and the last."""
    local = f"--gin.LOCAL_DIRECTORY={directory}.local"
    return start(directory, local, "--gin.TRAIN_STEPS=20", "--gin.SAVE_PERIOD=19", *flags, gin_file="tiers.gin")


def test_killed_run_resumes_from_local_checkpoints_with_equal_losses(tmp_path):
    killed, moved = tmp_path / "killed", tmp_path / "moved"
    processes = start_tiered(killed)
    wait_for_rows(killed, 7, processes)
    for process in processes:
        process.kill()
    finish(processes)
    assert Checkpoints(str(killed / "checkpoints"), read_only=True).steps() == [2]
    for process in range(2):  # the last two local checkpoints; a third may be incomplete
        saved = Path(f"{killed}.local").glob(f"*/process_{process}_of_2/*")
        steps = sorted(int(entry.name) for entry in saved if entry.name.isdigit())
        assert len(steps) <= 2 and steps[-1] >= 4 and not any(step % 2 for step in steps), steps
    before = losses(killed)
    shutil.copytree(killed, moved)
    shutil.copytree(f"{killed}.local", f"{moved}.local")
    # All processes restart on their machines.
    assert finish(start_tiered(killed), seconds=240) == [0, 0], output(killed, 0)[-3000:]
    found = re.search(r"restoring step (\d+) from the local checkpoints in", output(killed, 1))
    assert int(found[1]) >= 4
    assert losses(killed).items() >= before.items() and len(losses(killed)) == 25
    # The machine of process 1 is a new one, so all steps after step 2 are computed again.
    shutil.rmtree(next(Path(f"{moved}.local").glob("*/process_1_of_2")))
    assert finish(start_tiered(moved), seconds=240) == [0, 0], output(moved, 0)[-3000:]
    assert re.search(r"local checkpoint \d+ in .* is not used: process 1 \(.*\): not found", output(moved, 0))
    assert f"restoring step 2 from {moved}/checkpoints" in output(moved, 1)
    assert losses(moved) == losses(killed)
