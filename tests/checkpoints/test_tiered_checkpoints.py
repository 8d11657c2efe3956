"""Local checkpoints of each host beside the checkpoints of MODEL_DIR, in one process and in two."""

import errno
import functools
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import copying_run
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like import parameters
from t5x_like.checkpoints import local_checkpoints, replica_restore
from t5x_like.checkpoints.checkpoint_layout import stacked_shapes
from t5x_like.checkpoints.local_checkpoints import LocalTier
from t5x_like.checkpoints.manager import Checkpoints, DamagedCheckpoint
from t5x_like.checkpoints.tiered_checkpoints import TieredCheckpoints
from t5x_like.errors import UserError
from t5x_like.partitioning import Partitioner
from t5x_like.runtime import distributed
from t5x_like.training.recipe import Periods, Storage

pytestmark = [pytest.mark.full, pytest.mark.notf]

SCRIPT = Path(__file__).resolve().parents[1] / "processes" / "tiered_scenarios.py"


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory):
    """Returns what two processes have restored in each scenario: one text per process."""
    root = tmp_path_factory.mktemp("scenarios")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        distributed.COORDINATOR: f"127.0.0.1:{free_port()}",
        distributed.NUM_PROCESSES: "2",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(root)],
            env=environment | {distributed.PROCESS_ID: str(index)},
            stdout=subprocess.PIPE,
            stderr=(root / f"{index}.log").open("w"),
            text=True,
        )
        for index in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for index, process in enumerate(processes):
        assert process.returncode == 0, (root / f"{index}.log").read_text()[-3000:]
    return [dict(re.findall(r"^RESULT (\w+) (.*)$", output, re.MULTILINE)) for output in outputs]


HOST = re.escape(socket.gethostname())


@pytest.mark.parametrize(
    "scenario, expected",
    [
        ("killed", "8 restoring step 8 from the local checkpoints in /killed/local"),
        (
            "incomplete",
            rf"6 local checkpoint 8 in /incomplete/local is not used: process 1 \({HOST}\): not found \| "
            "restoring step 6 from the local",
        ),
        (
            "wiped",
            rf"4 local checkpoint 8 .*process 1 \({HOST}\): not found \| local checkpoint 6 .*: not found \| "
            r"restoring step 4 from /wiped/run/checkpoints \(local checkpoints in /wiped/local: \[6, 8\]\)",
        ),
        ("both_wiped", r"4 restoring step 4 from /both_wiped/run/checkpoints \(local .*: none\)"),
        (
            "flipped",
            r"6 local checkpoint 8 .*process 1 .*: damaged: .* does not match its checksum \| restoring step 6",
        ),
        (
            "bad_disk",
            r"6 local checkpoint 8 .*process 1 .*: cannot be read: .*Input/output error.* \| restoring step 6",
        ),
        (
            "lost_file",
            r"6 local checkpoint 8 .*process 1 .*: damaged: .*/8/about/metadata is missing \| restoring step 6",
        ),
        (
            "wiped_replica",
            r"8 restoring step 8 from the local checkpoints of the processes \[0\] in /wiped_replica/local, which "
            rf"broadcast it, because not all processes have it: process 1 \({HOST}\): not found",
        ),
        ("flipped_replica", r"8 restoring step 8 from the local checkpoints of the processes \[0\] .*its checksum"),
        ("both_replicas_wiped", "4 restoring step 4 from /both_replicas_wiped/run/checkpoints"),
    ],
)
def test_two_processes_restore_the_newest_step_that_both_can_get(in_two_processes, scenario, expected):
    for restored in in_two_processes:
        assert re.match(expected, restored[scenario]), restored[scenario]


class Layer(nnx.Module):
    def __init__(self, kernel):
        self.kernel = nnx.Param(kernel, axes=("embed", "mlp"))


class Net(nnx.Module):
    """An unrolled stack."""

    def __init__(self, step):
        self.layers = nnx.List([Layer(jnp.arange(32.0).reshape(8, 4) + step + index) for index in range(2)])


def tree(step):
    """Returns a state whose values depend on the step."""
    return {"net": Net(step), "step": jnp.asarray(step, jnp.int32)}


LIKE = jax.eval_shape(lambda: tree(0))
FSDP = {"fsdp": -1}


def create(tmp_path, run="run", ici=FSDP, **persistent):
    checkpoints = TieredCheckpoints(
        Checkpoints(str(tmp_path / run / "checkpoints"), **persistent),
        LocalTier(str(tmp_path / "local"), save_period=1),
        str(tmp_path / run),
    )
    checkpoints.prepare(LIKE, Partitioner(rules="fsdp", ici=ici))
    return checkpoints


def save(checkpoints, *local, persistent=()):
    for step in sorted({*local, *persistent}):
        if step in local:
            checkpoints.save_locally(step, tree(step), feed=b"%d" % step, about={"saved": step})
        if step in persistent:
            checkpoints.save(step, tree(step), feed=b"%d" % step, about={"saved": step})
    checkpoints.close()


def assert_restored(checkpoints, step, ici=FSDP):
    assert checkpoints.find_newest() == step
    restored = checkpoints.restore(step, LIKE, Partitioner(rules="fsdp", ici=ici))
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(restored), jax.tree.leaves(tree(step)))
    assert parameters.named_leaves(restored)["net/layers/1/kernel"].sharding.spec[0] == "fsdp"
    assert checkpoints.restore_feed(step) == b"%d" % step
    assert checkpoints.about(step)["saved"] == step
    assert checkpoints.shapes(step) == {"net/layers/kernel": (2, 8, 4), "step": ()}


def test_newest_local_checkpoint_is_restored_and_all_others_are_deleted(tmp_path):
    save(create(tmp_path), 2, 3, 4, persistent=[1])
    assert sorted(entry.name for entry in tmp_path.glob("local/*/process_0_of_1/*")) == ["3", "4"]
    checkpoints = create(tmp_path)
    assert_restored(checkpoints, 4)
    assert checkpoints.steps() == [1, 3, 4]
    checkpoints.begin()
    assert checkpoints.steps() == [1, 4]
    save(checkpoints, 5, persistent=[5])
    checkpoints = create(tmp_path)
    assert_restored(checkpoints, 5)
    checkpoints.begin()
    assert checkpoints.best() is None
    checkpoints.delete(5)
    assert checkpoints.steps() == [1]
    checkpoints.close()


def test_newer_checkpoint_in_model_dir_is_restored(tmp_path):
    save(create(tmp_path), 1, 2, persistent=[1, 3])
    checkpoints = create(tmp_path)
    assert_restored(checkpoints, 3)
    checkpoints.begin()
    assert checkpoints.steps() == [1, 3]
    checkpoints.close()


def test_saves_in_model_dir_follow_its_rules(tmp_path):
    checkpoints = create(tmp_path, keep_latest=1, keep_every=2)
    save(checkpoints, 1, 2, 3, 4, 5, persistent=[1, 2, 3, 4, 5])
    assert sorted(entry.name for entry in (tmp_path / "run/checkpoints").iterdir()) == ["2", "4", "5"]


def test_other_mesh_restores_from_model_dir(tmp_path, caplog):
    save(create(tmp_path), 2, persistent=[1])
    other = {"fsdp": 4, "data": 2}
    checkpoints = create(tmp_path, ici=other)
    assert_restored(checkpoints, 1, other)
    assert "local checkpoint 2" in caplog.text and "saved with another mesh" in caplog.text
    checkpoints.close()
    same = create(tmp_path)  # the start on the other mesh has failed before it began
    assert_restored(same, 2)
    same.close()


def test_failed_start_on_another_mesh_or_process_count_deletes_no_local_checkpoint(tmp_path):
    save(create(tmp_path), 2, persistent=[1])
    saved = next(tmp_path.glob("local/*/process_0_of_1"))
    others = saved.with_name("process_1_of_2")  # what a run of two processes has left
    shutil.copytree(saved, others)
    metadata = tmp_path / "run/checkpoints/1/about/metadata"
    contents = metadata.read_bytes()
    metadata.unlink()
    other = {"fsdp": 4, "data": 2}
    checkpoints = create(tmp_path, ici=other)
    with pytest.raises(DamagedCheckpoint):
        checkpoints.find_newest()
    checkpoints.close()
    assert (saved / "2").is_dir() and (others / "2").is_dir()
    metadata.write_bytes(contents)
    checkpoints = create(tmp_path, ici=other)
    assert_restored(checkpoints, 1, other)
    checkpoints.begin()
    assert not (saved / "2").exists() and not others.exists()
    checkpoints.close()


def test_run_without_checkpoints_in_model_dir_ignores_local_ones(tmp_path):
    save(create(tmp_path), 2, persistent=[1])
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    checkpoints = create(tmp_path)
    assert checkpoints.find_newest() is None
    checkpoints.begin()
    assert not checkpoints.steps()
    checkpoints.close()


def test_local_checkpoints_of_another_run_are_reported_and_not_used(tmp_path, caplog):
    save(create(tmp_path, "first"), 2, persistent=[1])
    checkpoints = create(tmp_path, "second")
    save(checkpoints, 4, persistent=[1])
    checkpoints = create(tmp_path, "second")
    assert f"another run, MODEL_DIR={tmp_path}/first, which are not used" in caplog.text
    assert_restored(checkpoints, 4)
    checkpoints.close()
    first = create(tmp_path, "first")
    assert_restored(first, 2)
    first.close()


def test_incomplete_local_checkpoint_is_ignored(tmp_path):
    save(create(tmp_path), 2, 3, persistent=[1])
    newest = next(tmp_path.glob("local/*/process_0_of_1/3"))
    newest.rename(newest.with_name("3.orbax-checkpoint-tmp"))
    checkpoints = create(tmp_path)
    assert_restored(checkpoints, 2)
    checkpoints.close()


def test_full_local_disk_ends_local_saves_but_not_the_run(tmp_path, caplog, monkeypatch):
    checkpoints = create(tmp_path)
    checkpoints.save(1, tree(1), feed=b"1", about={"saved": 1})

    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local_checkpoints.LocalCheckpoints, "save", fail)
    save(checkpoints, 2, 3, 4, persistent=[4])
    lines = [line for line in caplog.messages if "no more local checkpoints" in line]
    assert len(lines) == 1 and "process 0: OSError: [Errno 28] No space left on device" in lines[0]
    checkpoints = create(tmp_path)
    assert_restored(checkpoints, 4)
    checkpoints.close()


@pytest.mark.parametrize(
    "directory, message",
    [
        ("gs://bucket/local", "is not a local path"),
        ("{}/run/local", "is in MODEL_DIR"),
        ("{}/run", "is in MODEL_DIR"),
        ("", "is not a path"),
        (7, "is not a path"),
        ("{}/file/local", "is not a directory"),
        ("/proc/local", "LOCAL_DIRECTORY=/proc/local"),
        ("{}/a*b", "contains *"),
    ],
)
def test_unusable_local_directory_raises(tmp_path, directory, message):
    (tmp_path / "file").write_text("")
    if isinstance(directory, str):
        directory = directory.format(tmp_path)
    tier = LocalTier(directory)
    if directory != "/proc/local":  # for root, only creating it fails
        with pytest.raises(UserError, match=re.escape(message)):
            tier.check(str(tmp_path / "run"))
            tier.check_writable()
    persistent = Checkpoints(str(tmp_path / "run" / "checkpoints"))
    with pytest.raises(UserError, match=re.escape(message)):
        TieredCheckpoints(persistent, tier, str(tmp_path / "run"))
    persistent.close()


@pytest.mark.parametrize("local, period", [(0, 4), (4, 4), (5, 4), (2, None)])
def test_local_period_must_be_positive_and_less_than_that_of_model_dir(local, period, tmp_path):
    storage = Storage(str(tmp_path / "run"), local=LocalTier(str(tmp_path / "local"), save_period=local))
    with pytest.raises(UserError, match=f"LOCAL_SAVE_PERIOD={local} is not"):
        storage.check(Periods(8, save=period))


def test_last_step_is_only_saved_in_model_dir(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(TieredCheckpoints, "save_locally", lambda self, step, *others, **named: saved.append(step))
    local = LocalTier(str(tmp_path / "local"), save_period=2)
    every = functools.partial(Checkpoints, keep_latest=9)
    copying_run.run(tmp_path / "run", total=8, save=5, local=local, checkpoints=every)
    assert saved == [2, 4, 6]
    # The first one is always there as well.
    assert Checkpoints(str(tmp_path / "run" / "checkpoints"), read_only=True).steps() == [2, 5, 8]


@pytest.mark.parametrize("source", [0, 1])
def test_broadcast_keeps_every_bit(source, monkeypatch):
    monkeypatch.setattr(replica_restore, "_BROADCAST_BYTES", 16)  # several groups
    partitioner = Partitioner(rules="fsdp", ici={"data": 2, "fsdp": 4})
    values = {
        "signed_zeros": np.array([0.0, -0.0] * 4, np.float32),
        "nans": np.array([0x7FC00001, 0xFFC00002, 0x7F800000, 1] * 2, np.uint32).view(np.float32),
        "halves": np.arange(8).astype(jnp.bfloat16),
        "flags": np.array([True, False] * 4),
        "counts": np.arange(-4, 4, dtype=np.int32),
    }
    shapes = stacked_shapes({name: jax.ShapeDtypeStruct(v.shape, v.dtype) for name, v in values.items()}, partitioner)

    replica = set(partitioner.mesh.devices[source].flat)

    def read(wanted):
        assert all(set(leaf.sharding.mesh.devices.flat) == replica for leaf in wanted.values())
        return {name: jax.device_put(values[name], leaf.sharding) for name, leaf in wanted.items()}

    result = replica_restore.broadcast(read, shapes, source)
    for name, array in result.items():
        assert array.sharding == shapes[name].sharding and array.dtype == values[name].dtype
        for shard in array.addressable_shards:
            assert np.asarray(shard.data).tobytes() == values[name][shard.index].tobytes(), name
