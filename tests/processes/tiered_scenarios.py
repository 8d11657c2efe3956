"""Saves and restores in two tiers, in two processes with two devices each. Prints one line per scenario.

Usage: tiered_scenarios.py DIRECTORY. Each scenario has its own run directory and local directory in it.
"""

import errno
import logging as python_logging
import os
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from t5x_like.checkpoints import checksums
from t5x_like.checkpoints.local_checkpoints import LocalTier
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.checkpoints.tiered_checkpoints import TieredCheckpoints
from t5x_like.partitioning import Partitioner
from t5x_like.runtime import distributed

MESHES = {"sharded": {"ici": {"fsdp": -1}}, "replicas": {"ici": {"fsdp": -1}, "dcn": {"data": -1}}}
SHAPES = {"embedding": ((16, 4), jnp.float32), "scale": ((4,), jnp.bfloat16), "step": ((), jnp.int32)}


class Lines(python_logging.Handler):
    """Keeps the log lines of a scenario."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def state(partitioner, step):
    """Returns the state of a step, which differs in every bit pattern from the states of other steps; it has a -0.0."""
    rng = np.random.default_rng(step)
    values = {name: rng.normal(size=shape).astype(dtype) for name, (shape, dtype) in SHAPES.items() if shape}
    values["embedding"][3] = -0.0
    values["step"] = np.int32(step)
    shardings = shapes(partitioner)
    return {
        name: jax.make_array_from_callback(value.shape, shardings[name].sharding, lambda index, v=value: v[index])
        for name, value in values.items()
    }


def shapes(partitioner):
    shardings = partitioner.shardings(like())
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=shardings[name]) for name, leaf in like().items()
    }


def like():
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in SHAPES.items()}


def bits(tree):
    return {
        name: [(str(shard.index), np.asarray(shard.data).tobytes()) for shard in leaf.addressable_shards]
        for name, leaf in tree.items()
    }


def main(root):
    distributed.join()
    me = jax.process_index()
    lines = Lines()
    logging.get_absl_logger().addHandler(lines)
    logging.set_verbosity(logging.INFO)
    for scenario, (mesh, damage, expected) in SCENARIOS.items():
        partitioner = Partitioner(rules="fsdp", **MESHES[mesh])
        directory, local = root / scenario / "run" / "checkpoints", root / scenario / "local"

        def create(directory=directory, local=local):
            return TieredCheckpoints(Checkpoints(str(directory)), LocalTier(str(local), 2), str(directory.parent))

        writer = create()
        writer.prepare(like(), partitioner)
        assert writer.find_newest() is None
        for step in (2, 4, 6, 8):
            about = {"saved": step}
            writer.save_locally(step, state(partitioner, step), feed=b"%d of %d" % (step, me), about=about)
            if step == 4:
                writer.save(step, state(partitioner, step), feed=b"%d of %d" % (step, me), about=about)
        writer.close()
        parts = sorted((local / next(entry.name for entry in local.iterdir())).glob(f"process_{me}_of_2/*"))
        assert [part.name for part in parts] == ["6", "8"], parts
        damage(me, parts)
        left = read_parts(local, me)
        multihost_utils.sync_global_devices(f"{scenario} damaged")
        lines.lines.clear()
        reader = create()
        reader.prepare(like(), partitioner)
        found = reader.find_newest()
        restored = reader.restore(found, like(), partitioner)
        assert bits(restored) == bits(state(partitioner, found)), scenario
        assert reader.restore_feed(found) == b"%d of %d" % (found, me), scenario
        assert reader.about(found)["saved"] == found
        assert found == expected, (scenario, found)
        assert read_parts(local, me) == left, scenario  # a start that fails while it restores deletes none
        reader.begin()
        assert read_parts(local, me) == [str(found)] * (str(found) in left), scenario
        # The next local save works, whatever was left behind.
        reader.save_locally(found + 2, state(partitioner, found + 2), feed=b"x", about={})
        reader.wait()
        assert reader.latest() == found + 2
        reader.close()
        report = [line for line in lines.lines if "restoring step" in line or "is not used" in line]
        print(f"RESULT {scenario} {found} {' | '.join(report)}".replace(str(root), ""), flush=True)
    os._exit(0)  # a normal exit would wait for the other process, which may already have ended


def read_parts(local, me):
    """Returns the names of the complete local checkpoints of process `me`."""
    return sorted(entry.name for entry in local.glob(f"*/process_{me}_of_2/*") if entry.name.isdigit())


def fail_to_read(me, parts):
    """The disk of process 1 has a bad sector under a file of its last step."""
    if me == 1:
        file = max((parts[-1] / "state").glob("ocdbt.process_1/d/*"), key=lambda file: file.stat().st_size)
        read = checksums._checksum

        def read_or_raise(path, *described):
            if str(path) == str(file):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return read(path, *described)

        checksums._checksum = read_or_raise


def nothing(me, parts):
    """Both processes are killed after step 8."""


def lose_last(me, parts):
    """Process 1 is killed while it writes step 8."""
    if me == 1:
        parts[-1].rename(parts[-1].with_name("8.orbax-checkpoint-tmp"))


def wipe_one(me, parts):
    """The host of process 1 is a new one."""
    if me == 1:
        for part in parts:
            shutil.rmtree(part)


def wipe_both(me, parts):
    """All hosts are new."""
    for part in parts:
        shutil.rmtree(part)


def flip_bit(me, parts):
    """A bit of the last step of process 1 flips."""
    if me == 1:
        file = max((parts[-1] / "state").glob("ocdbt.process_1/d/*"), key=lambda file: file.stat().st_size)
        contents = bytearray(file.read_bytes())
        contents[len(contents) // 2] ^= 1
        file.write_bytes(contents)


def lose_file(me, parts):
    """Process 1 loses the file that says which arrays it holds, of its last step."""
    if me == 1:
        (parts[-1] / "about" / "metadata").unlink()


# Scenario -> mesh, what happens to the local checkpoints 6 and 8, and the step that is restored; 4 is in MODEL_DIR.
SCENARIOS = {
    "killed": ("sharded", nothing, 8),
    "incomplete": ("sharded", lose_last, 6),
    "wiped": ("sharded", wipe_one, 4),
    "both_wiped": ("sharded", wipe_both, 4),
    "flipped": ("sharded", flip_bit, 6),
    "bad_disk": ("sharded", fail_to_read, 6),
    "lost_file": ("sharded", lose_file, 6),
    "wiped_replica": ("replicas", wipe_one, 8),
    "flipped_replica": ("replicas", flip_bit, 8),
    "both_replicas_wiped": ("replicas", wipe_both, 4),
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
