"""Writing a cache that was interrupted, has lost files, or is written by two commands. No task is read."""

import io
import os
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from absl import logging
from rich.console import Console

from t5x_like import cache as command
from t5x_like.data import batches, specs
from t5x_like.data.cached import CachedSource, manifest, shard_files, writer
from t5x_like.errors import UserError

SPEC = specs.ENCODER_DECODER
LENGTHS = {"inputs": 6, "targets": 4}
ROWS = {(0, 0): 3, (0, 1): 2, (1, 0): 3, (1, 1): 0}


class Vocabulary:
    vocab_size = 100

    def decode(self, ids):
        return str(ids)


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Returns a plan of two passes in two shards each; the last shard has no rows."""
    source = types.SimpleNamespace(
        mixture_or_task_name="a_task",
        tasks=[],
        module=None,
        task_arguments=None,
        file_arguments={},
        use_cached=False,
        vocabulary_path=None,
        split="train",
        seed=0,
        text_problems=lambda spec: (),
        task_feature_lengths=LENGTHS,
        pack=False,
        packing="next_fit",
        continuous=False,
        vocabularies=lambda: {name: Vocabulary() for name in LENGTHS},
        add_eos=lambda: dict.fromkeys(LENGTHS, False),
    )
    plan = writer.Plan(str(tmp_path / "train"), source, SPEC, passes=2, shards=2)

    def arrays(plan, unit, recorder):
        if rows := ROWS[unit]:
            tokens = {name: np.zeros((rows, length), np.int32) for name, length in LENGTHS.items()}
            for array in tokens.values():
                array[:, 0] = 10 * unit[0] + unit[1] + 1
            yield batches.from_arrays(plan.layout.storage_spec(SPEC), tokens)

    monkeypatch.setattr(writer, "_arrays", arrays)
    return plan


@pytest.fixture
def written(monkeypatch):
    """Returns a list to which the units are appended as they are written."""
    units, write_shard = [], writer.write_shard
    monkeypatch.setattr(
        writer, "write_shard", lambda plan, unit, *more: (units.append(unit), write_shard(plan, unit))[1]
    )
    return units


def write(plan, processes=1, beam=None):
    return command._write(plan, writer, processes, beam, Console(file=io.StringIO()))


def files(plan):
    return sorted(str(path.relative_to(plan.directory)) for path in Path(plan.directory).rglob("*") if path.is_file())


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("beam", [None, []])
def test_missing_manifest_is_written(plan, written, processes, beam):
    plan.begin()
    for unit in plan.units():
        writer.write_shard(plan, unit)
    written.clear()
    assert write(plan, processes, beam).rows_of_passes == [5, 3]
    assert not written
    cache = CachedSource(cache_dir=str(Path(plan.directory).parent), batch_size=1)
    assert cache.add_eos() == dict.fromkeys(LENGTHS, False)


@pytest.mark.parametrize("processes", [1, 2])
def test_cache_without_examples_raises_each_time(plan, monkeypatch, processes):
    monkeypatch.setattr(writer, "_arrays", lambda plan, unit, recorder: iter(()))
    plan.begin()
    for unit in plan.units():
        writer.write_shard(plan, unit)
    for _ in range(2):
        with pytest.raises(ValueError, match="a_task, split 'train', has no examples"):
            write(plan, processes)


def lose(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [lose, cut])
def test_recorded_shard_without_its_file_is_rewritten(plan, written, damage):
    plan.begin()
    for unit in plan.units()[:3]:
        writer.write_shard(plan, unit)
    damage(Path(plan.directory, plan.file((0, 1))))
    written.clear()
    manifest.check_files(plan.directory, write(plan).shards, checksums=True)
    assert written == [(0, 1), (1, 1)]


@pytest.mark.parametrize("damage", [lose, cut])
def test_complete_cache_rewrites_only_lost_files(plan, written, damage, monkeypatch):
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda message, *values: warnings.append(message % values))
    complete, expected = write(plan), files(plan)
    written.clear()
    damage(Path(plan.directory, plan.file((1, 0))))
    again = write(plan)
    assert written == [(1, 0)]
    assert warnings == [
        f"{plan.directory}: 1 files of the complete cache are missing or truncated ({plan.file((1, 0))}); writing them "
        "again"
    ]
    assert again.fingerprint == complete.fingerprint
    assert files(plan) == expected
    manifest.check_files(plan.directory, again.shards, checksums=True)


def test_cache_being_rewritten_is_not_read(plan, monkeypatch):
    write(plan)
    lose(Path(plan.directory, plan.file((1, 0))))
    monkeypatch.setattr(writer, "write_shard", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(plan)
    with pytest.raises(UserError, match="is incomplete: manifest.json not found, 3 shards are complete"):
        CachedSource(cache_dir=str(Path(plan.directory).parent), batch_size=1).describe()


def test_missing_shard_is_reported(plan, monkeypatch):
    for unit in plan.units()[:2]:
        writer.write_shard(plan, unit)
    # Like a pipeline whose workers write to their own disks.
    monkeypatch.setattr(command, "_with_beam", lambda plan, units, options: None)
    with pytest.raises(
        RuntimeError, match="2 of 4 shards of .*/train are missing .*pass-001/00000-of-.*With BEAM, every"
    ):
        write(plan, beam=["--runner=Any"])
    assert not Path(plan.directory, manifest.MANIFEST).exists()


@pytest.mark.parametrize("beam", ["yes", True, [1]])
def test_invalid_beam_options_raise(beam, tmp_path):
    with pytest.raises(ValueError, match=r"BEAM=.* is not a list of pipeline options. Give one such as --gin.BEAM="):
        command.cache(data=None, objective=None, cache_dir=str(tmp_path), beam=beam)


# ---- killed writers ------------------------------------------------------------------------------------------------


def test_temporary_file_name_contains_host_and_process(plan):
    target = str(Path(plan.directory, plan.file((0, 0))))
    with shard_files.local_file(target) as mine:
        assert f"-{os.getpid()}.tmp" in mine
        assert shard_files.TEMPORARY.fullmatch(Path(mine).name)["host"] == socket.gethostname()


def test_stale_files_of_killed_writers_are_removed(plan):
    gone = subprocess.Popen(["true"])
    gone.wait()
    directory, host = Path(plan.directory, "pass-000"), socket.gethostname()
    directory.mkdir(parents=True)
    stale = directory / f".0.array_record.{host}-{gone.pid}.tmp"
    kept = [
        directory / f".0.array_record.{host}-{os.getpid()}.tmp",
        directory / f".0.array_record.not-{host}-{gone.pid}.tmp",
    ]
    for path in (stale, *kept):
        path.write_text("")
    plan.begin()
    assert sorted(directory.iterdir()) == sorted(kept)


# A command with one worker that is busy for longer than the test waits.
PARENT = """
import concurrent.futures, multiprocessing, os, time
from t5x_like.cache import _start_worker
context = multiprocessing.get_context("spawn")
with concurrent.futures.ProcessPoolExecutor(1, context, _start_worker, (None, False)) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600).result()
"""


@pytest.mark.full
def test_workers_exit_when_the_command_is_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    worker = int(parent.stdout.readline())
    parent.kill()
    try:
        parent.communicate(timeout=20)  # the output ends when the worker has exited
    except subprocess.TimeoutExpired:
        os.kill(worker, signal.SIGKILL)
        raise
