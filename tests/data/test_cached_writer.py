"""Writing a cache that was interrupted, has lost files, or is written twice at the same time. No task is read."""

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
from t5x_like.data import batches, features
from t5x_like.data.cached import CachedSource, manifest, writer
from t5x_like.errors import UserError

SPEC = features.ENCODER_DECODER
LENGTHS = {"inputs": 6, "targets": 4}
ROWS = {(0, 0): 3, (0, 1): 2, (1, 0): 3, (1, 1): 0}


class Vocabulary:
    vocab_size = 100

    def decode(self, ids):
        return str(ids)


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Of two passes in two shards each, of which the last has no rows."""
    source = types.SimpleNamespace(
        mixture_or_task_name="a_task",
        tasks=[],
        module=None,
        task_arguments=None,
        use_cached=False,
        split="train",
        seed=0,
        task_feature_lengths=LENGTHS,
        pack=False,
        vocabularies=lambda: {name: Vocabulary() for name in LENGTHS},
    )
    plan = writer.Plan(str(tmp_path / "train"), source, SPEC, passes=2, shards=2)

    def arrays(plan, unit):
        if rows := ROWS[unit]:
            tokens = {name: np.zeros((rows, length), np.int32) for name, length in LENGTHS.items()}
            for array in tokens.values():
                array[:, 0] = 10 * unit[0] + unit[1] + 1
            yield batches.from_arrays(plan.layout.storage_spec(SPEC), tokens)

    monkeypatch.setattr(writer, "_arrays", arrays)
    return plan


@pytest.fixture
def written(monkeypatch):
    """The units whose files are being written, in order."""
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
def test_a_cache_that_lacks_its_manifest_alone_is_finished(plan, written, processes, beam):
    plan.begin()
    for unit in plan.units():
        writer.write_shard(plan, unit)
    written.clear()
    assert write(plan, processes, beam).rows_of_passes == [5, 3]
    assert not written


@pytest.mark.parametrize("processes", [1, 2])
def test_a_cache_without_an_example_says_so_each_time(plan, monkeypatch, processes):
    monkeypatch.setattr(writer, "_arrays", lambda plan, unit: iter(()))
    plan.begin()
    for unit in plan.units():
        writer.write_shard(plan, unit)
    for _ in range(2):
        with pytest.raises(ValueError, match="a_task, split 'train', gives no example"):
            write(plan, processes)


def lose(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [lose, cut])
def test_a_note_without_its_file_does_not_count(plan, written, damage):
    plan.begin()
    for unit in plan.units()[:3]:
        writer.write_shard(plan, unit)
    damage(Path(plan.directory, plan.file((0, 1))))
    written.clear()
    manifest.check_files(plan.directory, write(plan), checksums=True)
    assert written == [(0, 1), (1, 1)]


@pytest.mark.parametrize("damage", [lose, cut])
def test_a_complete_cache_writes_anew_what_it_has_lost_alone(plan, written, damage, monkeypatch):
    told = []
    monkeypatch.setattr(logging, "warning", lambda message, *values: told.append(message % values))
    whole, there = write(plan), files(plan)
    written.clear()
    damage(Path(plan.directory, plan.file((1, 0))))
    again = write(plan)
    assert written == [(1, 0)]
    assert told == [
        f"{plan.directory} was complete and has lost 1 of its files, or parts of them ({plan.file((1, 0))}): they are "
        "written again"
    ]
    assert again.fingerprint == whole.fingerprint
    assert files(plan) == there
    manifest.check_files(plan.directory, again, checksums=True)


def test_a_cache_that_is_being_written_anew_is_not_read(plan, monkeypatch):
    write(plan)
    lose(Path(plan.directory, plan.file((1, 0))))
    monkeypatch.setattr(writer, "write_shard", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(plan)
    with pytest.raises(UserError, match="half-written .3 shards are complete"):
        CachedSource(cache_dir=str(Path(plan.directory).parent), batch_size=1).describe()


def test_a_shard_that_did_not_arrive_is_named(plan, monkeypatch):
    for unit in plan.units()[:2]:
        writer.write_shard(plan, unit)
    # As with a pipeline whose workers write to disks of their own.
    monkeypatch.setattr(command, "_with_beam", lambda plan, units, options: None)
    with pytest.raises(RuntimeError, match="2 of 4 shards of .*/train did not .*pass-001/00000-of-.*With BEAM, CACHE_"):
        write(plan, beam=["--runner=Any"])
    assert not Path(plan.directory, manifest.MANIFEST).exists()


@pytest.mark.parametrize("beam", ["yes", True, [1]])
def test_beam_is_a_list_of_options(beam, tmp_path):
    with pytest.raises(ValueError, match=r"BEAM=.* is no list of a pipeline's options, such as --gin.BEAM="):
        command.cache(data=None, objective=None, cache_dir=str(tmp_path), beam=beam)


# ---- writers that are killed -----------------------------------------------------------------------------------------


def test_two_writers_of_a_file_write_to_names_of_their_own(plan):
    target = str(Path(plan.directory, plan.file((0, 0))))
    with writer._local_file(target) as mine:
        assert f"-{os.getpid()}.tmp" in mine
        assert writer._TEMPORARY.fullmatch(Path(mine).name)["host"] == socket.gethostname()


def test_what_a_killed_writer_left_behind_is_removed(plan):
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder, here = Path(plan.directory, "pass-000"), socket.gethostname()
    folder.mkdir(parents=True)
    stale = folder / f".0.array_record.{here}-{gone.pid}.tmp"
    kept = [folder / f".0.array_record.{here}-{os.getpid()}.tmp", folder / f".0.array_record.not-{here}-{gone.pid}.tmp"]
    for path in (stale, *kept):
        path.write_text("")
    plan.begin()
    assert sorted(folder.iterdir()) == sorted(kept)


# A command with one worker, which is busy for longer than the test waits.
PARENT = """
import concurrent.futures, multiprocessing, os, time
from t5x_like.cache import _start_worker
context = multiprocessing.get_context("spawn")
with concurrent.futures.ProcessPoolExecutor(1, context, _start_worker, (None,)) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600).result()
"""


def test_workers_end_with_their_command_however_it_ends():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    worker = int(parent.stdout.readline())
    parent.kill()
    try:
        parent.communicate(timeout=20)  # its output ends when nobody holds it any more
    except subprocess.TimeoutExpired:
        os.kill(worker, signal.SIGKILL)
        raise
