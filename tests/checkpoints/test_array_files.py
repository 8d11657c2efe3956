"""The sizes of the files that checkpoints consist of."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from t5x_like.checkpoints.array_files import ArrayFiles
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.partitioning import Partitioner

pytestmark = pytest.mark.notf

MIB = 1 << 20
# Random bits, which cannot be compressed: 8 arrays of 2 MiB.
VALUES = {
    f"array_{index}": np.random.default_rng(index).integers(0, 1 << 32, (512, 1024), np.uint32) for index in range(8)
}
SHAPES = {name: jax.ShapeDtypeStruct(value.shape, jnp.uint32) for name, value in VALUES.items()}


def save(directory, files=None):
    checkpoints = Checkpoints(str(directory), files=files)
    checkpoints.save(1, {name: jnp.asarray(value) for name, value in VALUES.items()})
    checkpoints.close()


def data_files(directory):
    """Returns the sizes in MiB of the files with arrays, the largest first."""
    sizes = [file.stat().st_size / MIB for file in (directory / "1/state/ocdbt.process_0/d").iterdir()]
    return sorted((size for size in sizes if size > 0.1), reverse=True)


def chunks(directory):
    metadata = ocp.PyTreeCheckpointHandler().metadata(epath.Path(directory) / "1" / "state").tree
    return {leaf.storage.chunk_shape for leaf in metadata.values()}


@pytest.mark.parametrize(
    "files, fewest, most, chunk",
    [
        (ArrayFiles(), 1, 8, (512, 1024)),
        (ArrayFiles(file_mib=0, chunk_mib=2), 1, 8, (512, 1024)),
        (ArrayFiles(file_mib=4, chunk_mib=2), 3, 8, (512, 1024)),
        (ArrayFiles(file_mib=4, chunk_mib=1), 4, 16, (512, 512)),
        (ArrayFiles(file_mib=1, chunk_mib=1), 16, 16, (512, 512)),
    ],
    ids=str,
)
def test_number_and_size_of_files_and_chunks_follow_the_settings(tmp_path, files, fewest, most, chunk):
    save(tmp_path, files)
    sizes = data_files(tmp_path)
    assert sum(sizes) == pytest.approx(16, rel=0.05)
    assert fewest <= len(sizes) <= most  # the number also depends on which writes happen at the same time
    if files.file_mib:  # a file ends with the chunk that exceeds the limit
        assert max(sizes) <= files.file_mib + files.chunk_mib + 0.1
    assert chunks(tmp_path) == {chunk}
    assert math.prod(chunk) * 4 <= files.chunk_mib * MIB


@pytest.mark.parametrize("files", [None, ArrayFiles(file_mib=4, chunk_mib=1)], ids=str)
def test_checkpoints_of_any_file_size_are_restored_on_another_mesh(tmp_path, files, monkeypatch):
    with monkeypatch.context() as patch:
        if files is None:  # Orbax's own sizes, as earlier versions wrote them
            patch.setattr(ArrayFiles, "save_args", lambda self, tree: {})
        save(tmp_path, files)
    partitioner = Partitioner(rules="fsdp", ici={"fsdp": -1})
    reader = Checkpoints(str(tmp_path), read_only=True)
    sharding = jax.sharding.NamedSharding(partitioner.mesh, jax.sharding.PartitionSpec("fsdp"))
    wanted = {name: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding) for name, s in SHAPES.items()}
    restored = reader.read(1, wanted)
    for name, value in VALUES.items():
        assert restored[name].sharding == sharding
        np.testing.assert_array_equal(restored[name], value)
    reader.close()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"file_mib": -1}, "file_mib=-1 is negative"),
        ({"chunk_mib": 0}, "chunk_mib=0 is not positive"),
        ({"file_mib": 8, "chunk_mib": 9}, "chunk_mib=9 is larger than file_mib=8"),
    ],
)
def test_invalid_sizes_raise(settings, message):
    with pytest.raises(UserError, match=message):
        ArrayFiles(**settings)
