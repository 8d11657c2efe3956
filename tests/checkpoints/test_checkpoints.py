"""Checkpoints: round trips across layouts and meshes, retention, damage, and stores that Orbax cannot write to."""

import json
import logging
import re
import shutil
import time
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath
from flax import nnx
from jax.experimental import multihost_utils

from t5x_like import parameters
from t5x_like.checkpoints import checksums
from t5x_like.checkpoints.checkpoint_layout import lay_out, stacked_shapes, unroll_program
from t5x_like.checkpoints.manager import Checkpoints, DamagedCheckpoint
from t5x_like.errors import RunFailed, UserError
from t5x_like.partitioning import Partitioner


class Layer(nnx.Module):
    def __init__(self, key):
        self.kernel = nnx.Param(jax.random.normal(key, (8, 4)), axes=("embed", "mlp"))


class Net(nnx.Module):
    def __init__(self, key, scanned):
        keys = jax.random.split(key, 3)
        self.layers = jax.vmap(Layer)(keys) if scanned else nnx.List([Layer(k) for k in keys])
        self.scale = nnx.Param(jnp.arange(8.0), axes=("embed",))


def tree(scanned, seed=0):
    return {"params": {"model": Net(jax.random.key(seed), scanned)}, "step": jnp.asarray(7, jnp.int32)}


def assert_equal(a, b):
    left = parameters.stack(parameters.named_leaves(a))
    right = parameters.stack(parameters.named_leaves(b))
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@pytest.fixture
def partitioner():
    return Partitioner(rules="fsdp", ici={"fsdp": -1})


def test_reading_logs_no_warning_about_options(tmp_path, caplog):
    with caplog.at_level("WARNING", logger="absl"):
        Checkpoints(str(tmp_path), read_only=True).close()
    assert not [line for line in caplog.messages if "CheckpointManagerOptions" in line]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("read", [False, True])
def test_restore_into_either_layout_and_another_mesh(tmp_path, partitioner, written, read):
    checkpoints = Checkpoints(str(tmp_path / "c"))
    checkpoints.save(7, tree(written), feed=b"position", about={"versions": {"jax": jax.__version__}})
    checkpoints.close()
    reader = Checkpoints(str(tmp_path / "c"), read_only=True)
    restored = reader.restore(7, jax.eval_shape(lambda: tree(read, seed=1)), partitioner)
    assert_equal(restored, tree(written))
    name = "params/model/layers/kernel" if read else "params/model/layers/1/kernel"
    kernel = parameters.named_leaves(restored)[name]
    assert kernel.sharding.spec[-2] == "fsdp"
    assert reader.restore_feed(7) == b"position"
    assert reader.about(7)["versions"] == {"jax": jax.__version__}
    scale = {"params/model/scale": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=partitioner.replicated)}
    np.testing.assert_array_equal(reader.read(7, scale)["params/model/scale"], np.arange(8.0))


def test_saved_arrays_may_be_donated_immediately(tmp_path, partitioner):
    checkpoints = Checkpoints(str(tmp_path))
    state = tree(False)
    expected = jax.tree.map(np.array, state)
    checkpoints.save(1, state)
    bump = jax.jit(lambda t: jax.tree.map(lambda x: x + 1, t), donate_argnums=0)
    for _ in range(3):
        state = bump(state)
    checkpoints.wait()
    assert_equal(checkpoints.restore(1, jax.eval_shape(lambda: tree(False)), partitioner), expected)


def test_retention_keeps_latest_every_nth_and_best(tmp_path):
    checkpoints = Checkpoints(str(tmp_path), keep_latest=1, keep_every=4, keep_best=1)
    for step, loss in enumerate([5.0, 1.0, 2.0, 3.0, 4.0, 6.0], start=1):
        checkpoints.save(step, tree(True), metrics={"loss": loss})
        checkpoints.wait()
    assert checkpoints.steps() == [2, 4, 6]  # the best, each multiple of four, and the latest although it is the worst
    checkpoints.close()


def test_incomplete_checkpoint_is_ignored_and_removed(tmp_path):
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(1, tree(True))
    checkpoints.close()
    torn = tmp_path / "2.orbax-checkpoint-tmp"
    (torn / "state").mkdir(parents=True)
    assert Checkpoints(str(tmp_path)).latest() == 1
    deadline = time.monotonic() + 30
    while torn.exists() and time.monotonic() < deadline:  # Orbax removes it in the background
        time.sleep(0.05)
    assert not torn.exists()


def test_other_shapes_and_missing_tensors_raise(tmp_path, partitioner):
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save(1, {"w": jnp.zeros((2, 3))})
    checkpoints.wait()
    with pytest.raises(ValueError, match=r"w has shape \(2, 3\) instead of \(2, 4\)"):
        checkpoints.restore(1, {"w": jax.ShapeDtypeStruct((2, 4), jnp.float32)}, partitioner)
    with pytest.raises(ValueError, match="tensor 'v' not found"):
        checkpoints.restore(1, {"v": jax.ShapeDtypeStruct((2, 4), jnp.float32)}, partitioner)
    with pytest.raises(ValueError, match=r"checkpoint 9 not found\. Give one of \[1\]"):
        checkpoints.about(9)


def test_checkpoints_in_a_store_that_orbax_cannot_write_to(partitioner):
    url = "memory://bucket/run/checkpoints"
    checkpoints = Checkpoints(url, keep_latest=1)
    for step in (1, 2):
        checkpoints.save(step, tree(True, seed=step), feed=b"%d" % step)
        checkpoints.wait()
    checkpoints.close()
    checkpoints._mirror._filesystem.pipe_file("/bucket/run/checkpoints/3/half", b"written")
    reopened = Checkpoints(url)
    assert reopened.steps() == [2]
    assert_equal(reopened.restore(2, jax.eval_shape(lambda: tree(False)), partitioner), tree(True, seed=2))
    reopened.save(4, tree(True, seed=4))
    reopened.close()
    assert Checkpoints(url).steps() == [2, 4]
    assert not reopened._mirror._filesystem.exists("/bucket/run/checkpoints/3")


def damage(step_directory, pattern="ocdbt.process_0/d/*"):
    """Flips a bit in the middle of the largest file and returns its path."""
    file = max((step_directory / "state").glob(pattern), key=lambda file: file.stat().st_size)
    contents = bytearray(file.read_bytes())
    contents[len(contents) // 2] ^= 1
    file.write_bytes(contents)
    return file


def save(directory, *steps, value=None):
    checkpoints = Checkpoints(str(directory))
    for step in steps:
        checkpoints.save(step, value or {"w": jnp.arange(1000.0)}, feed=b"position")
        checkpoints.wait()
    return checkpoints


WANTED = {"w": jax.ShapeDtypeStruct((1000,), jnp.float32)}


def test_flipped_bit_raises_and_names_the_file(tmp_path, partitioner):
    save(tmp_path, 1).close()
    file = damage(tmp_path / "1")
    reader = Checkpoints(str(tmp_path), read_only=True)
    with pytest.raises(DamagedCheckpoint, match=f"{re.escape(str(file))} does not match its checksum"):
        reader.restore(1, WANTED, partitioner)
    assert reader.restore_feed(1) == b"position"


@pytest.mark.parametrize("name", ["state/checksums_process_0.json", "state/_METADATA", "feed/process_0_of_1.bin"])
@pytest.mark.parametrize("contents", [None, b"", b"x"])
def test_missing_or_truncated_file_raises_and_is_named(tmp_path, name, contents):
    checkpoints = save(tmp_path, 1)
    file = tmp_path / "1" / name
    file.unlink() if contents is None else file.write_bytes(contents)
    with pytest.raises(DamagedCheckpoint, match=re.escape(name)):
        Checkpoints(str(tmp_path), read_only=True).verify(1)
    checkpoints.close()


@pytest.mark.parametrize("reader", [0, 1])
def test_every_process_raises_if_a_file_cannot_be_read_by_one(tmp_path, monkeypatch, reader):
    save(tmp_path, 1).close()
    checkpoints = Checkpoints(str(tmp_path), read_only=True)
    other = np.array([False, reader == 1])

    def fail(*_):
        raise OSError("Input/output error")

    if reader == 0:
        monkeypatch.setattr(checkpoints._store, "verify", fail)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda found: np.stack([found, other]))
    message = "Input/output error" if reader == 0 else "process 1 could not read checkpoint .*/1; see its message"
    with pytest.raises(OSError, match=message):
        checkpoints.verify(1, "state")


def test_delete_damaged_keeps_the_newest_intact_checkpoint(tmp_path, partitioner, caplog):
    save(tmp_path, 1, 2).close()
    damage(tmp_path / "2")
    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.delete_damaged()
    assert checkpoints.steps() == [1]
    assert "2 is damaged" in caplog.text
    checkpoints.save(2, {"w": jnp.zeros(1000)})
    checkpoints.close()
    assert Checkpoints(str(tmp_path)).steps() == [1, 2]


def test_delete_damaged_raises_if_every_checkpoint_is_damaged(tmp_path):
    save(tmp_path, 1, 2).close()
    damage(tmp_path / "1")
    damage(tmp_path / "2")
    checkpoints = Checkpoints(str(tmp_path))
    with pytest.raises(DamagedCheckpoint, match=r"every checkpoint is damaged \(\[2, 1\]\), and none was deleted"):
        checkpoints.delete_damaged()
    assert checkpoints.steps() == [1, 2]


@pytest.mark.parametrize("item", ["state", "feed", "about"])
def test_checkpoint_without_the_checksums_of_an_item_is_damaged(tmp_path, item):
    save(tmp_path, 1).close()
    (tmp_path / "1" / item / checksums.MANIFEST).unlink()
    with pytest.raises(DamagedCheckpoint, match=f"1/{item}/checksums.json is missing"):
        Checkpoints(str(tmp_path), read_only=True).verify(1)


@pytest.mark.parametrize("byte", ["crc32", "bytes", "process_0_of_1.bin"])
def test_damaged_name_in_checksums_is_repaired_by_an_earlier_checkpoint(tmp_path, byte):
    save(tmp_path, 1, 2).close()
    file = tmp_path / "2/feed" / checksums.MANIFEST
    file.write_text(file.read_text().replace(byte, "x" + byte[1:]))
    checkpoints = Checkpoints(str(tmp_path))
    with pytest.raises(DamagedCheckpoint, match="2/feed/"):
        checkpoints.verify(2)
    checkpoints.delete_damaged()
    assert checkpoints.steps() == [1]
    checkpoints.close()


@pytest.mark.parametrize("item", ["state", "feed", "about"])
def test_checkpoint_without_an_item_is_damaged(tmp_path, partitioner, item):
    save(tmp_path, 1, 2).close()
    shutil.rmtree(tmp_path / "2" / item)
    checkpoints = Checkpoints(str(tmp_path))
    with pytest.raises(DamagedCheckpoint, match=f"2/{item} is missing"):
        checkpoints.verify(2)
    checkpoints.delete_damaged()
    assert checkpoints.steps() == [1]
    checkpoints.close()


def test_checkpoint_without_checksums_loads_and_is_logged(tmp_path, partitioner, caplog):
    save(tmp_path, 1).close()
    for file in (tmp_path / "1").glob("*/checksums*"):
        file.unlink()
    with caplog.at_level("INFO", logger="absl"):
        reader = Checkpoints(str(tmp_path), read_only=True)
        reader.restore(1, WANTED, partitioner)
        reader.restore_feed(1)
    assert len([line for line in caplog.messages if "is not verified: checksums not found" in line]) == 1


@pytest.mark.parametrize("stored", [{"../other": {"bytes": 1, "crc32": "0"}}, {"a": 3}, [1], "text"])
def test_checksums_list_files_of_the_checkpoint_only(tmp_path, stored):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / checksums.MANIFEST).write_text(json.dumps(stored))
    with pytest.raises(checksums.DamagedFile, match=r"checksums\.json (has '|does not list checksums)"):
        checksums.verify(epath.Path(tmp_path / "checkpoint"))


def test_checksums_of_an_earlier_version_are_compared(tmp_path):
    (tmp_path / "file").write_bytes(b"contents")
    entry = {"bytes": 8, "crc32": f"{zlib.crc32(b'contents'):08x}"}
    (tmp_path / checksums.MANIFEST).write_text(json.dumps({"file": entry}))
    assert checksums.verify(epath.Path(tmp_path))
    (tmp_path / "file").write_bytes(b"Contents")
    with pytest.raises(checksums.DamagedFile, match="file does not match its checksum"):
        checksums.verify(epath.Path(tmp_path))


def test_checksums_are_written_before_the_commit(tmp_path, monkeypatch):
    written = []
    write = checksums.write
    monkeypatch.setattr(checksums, "write", lambda directory: written.append(str(directory)) or write(directory))
    save(tmp_path, 1).close()
    assert written and all("tmp" in directory for directory in written)


@pytest.mark.parametrize("name", ["run[1]", "a*b", "a?b", "a\\b", "\udcff"])
def test_path_that_orbax_cannot_write_to_raises(tmp_path, name):
    with pytest.raises(UserError, match="directory"):
        Checkpoints(f"{tmp_path}/{name}/checkpoints")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["{x,y}", "sp ace ", "a#b", "a%20b", "ünï", "new\nline", "~x", "$HOME"])
def test_unusual_paths_work(tmp_path, partitioner, name):
    save(tmp_path / name, 1).close()
    restored = Checkpoints(str(tmp_path / name), read_only=True).restore(1, WANTED, partitioner)
    np.testing.assert_array_equal(restored["w"], np.arange(1000.0))


def test_unreadable_first_checkpoint_raises(tmp_path, monkeypatch):
    """Orbax may fail to merge the files of the processes and only log a warning."""
    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "finalize", lambda self, directory: None)
    with pytest.raises(RunFailed, match="was written but cannot be read"):
        Checkpoints(str(tmp_path)).save(1, {"w": jnp.zeros(8)})


def test_reading_logs_no_warning(tmp_path, caplog):
    save(tmp_path, 1).close()
    caplog.clear()
    Checkpoints(str(tmp_path), read_only=True).about(1)
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_restoring_the_stored_layout_copies_no_array(partitioner):
    shapes = jax.eval_shape(lambda: tree(True))
    shardings = parameters.named_leaves(partitioner.shardings(shapes))
    stacked = {
        name: jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding)
        for name, leaf in stacked_shapes(shapes, partitioner).items()
    }
    pointers = {name: leaf.addressable_shards[0].data.unsafe_buffer_pointer() for name, leaf in stacked.items()}
    placed = lay_out(stacked, shardings)
    assert {n: leaf.addressable_shards[0].data.unsafe_buffer_pointer() for n, leaf in placed.items()} == pointers


def test_unrolling_needs_one_additional_stack_in_memory(partitioner):
    shapes = jax.eval_shape(lambda: tree(False))
    kernel = stacked_shapes(shapes, partitioner)["params/model/layers/kernel"]
    shardings = parameters.named_leaves(partitioner.shardings(shapes))
    layers = [shardings[f"params/model/layers/{index}/kernel"] for index in range(3)]
    memory = unroll_program(layers).lower(kernel).compile().memory_analysis()
    assert memory.argument_size_in_bytes == 3 * 8 * 4 * 4 // 8
    assert memory.output_size_in_bytes <= memory.argument_size_in_bytes + 3 * 8  # plus a table of pointers
    assert memory.temp_size_in_bytes == 0


@pytest.mark.parametrize("ici, replicas", [({"fsdp": 8}, 1), ({"data": 2, "fsdp": 4}, 2)])
def test_restoring_in_one_replica_needs_a_replica_per_process(tmp_path, ici, replicas):
    partitioner = Partitioner(rules="fsdp", ici=ici)
    Checkpoints(f"{tmp_path}/all").prepare({}, partitioner)
    with pytest.raises(UserError, match=f"restore_one_replica=True: the mesh .* has {replicas} replicas .*DCN"):
        Checkpoints(f"{tmp_path}/one", restore_one_replica=True).prepare({}, partitioner)
