"""Safetensors: whole, sharded, in a bucket, and damaged in every way that matters."""

import json
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.interop.safetensors_files import INDEX, SINGLE, Tensors, write

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.float16),
    "c": np.array(3.5),
}


def assert_holds(folder, tensors):
    found = Tensors(str(folder))
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found.shapes[name] == tensor.shape
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor)


def test_what_the_library_wrote_is_read(tmp_path):
    safetensors.numpy.save_file(TENSORS, tmp_path / SINGLE, metadata={"format": "pt"})
    assert_holds(tmp_path, TENSORS)


def test_what_is_written_the_library_reads(tmp_path):
    write(str(tmp_path), TENSORS)
    read = safetensors.numpy.load_file(tmp_path / SINGLE)
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(read[name], tensor)


def test_transposed_tensors_are_written_in_their_order(tmp_path):
    write(str(tmp_path), {"t": TENSORS["a"].T})
    assert_holds(tmp_path, {"t": TENSORS["a"].T})


def test_shards_hold_at_most_their_size_and_are_read_through_the_index(tmp_path):
    tensors = {f"t{i}": np.full((10,), i, np.float32) for i in range(5)}
    write(str(tmp_path), tensors, shard_bytes=80)
    assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == [
        f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)
    ]
    assert json.loads((tmp_path / INDEX).read_text())["metadata"]["total_size"] == 200
    assert_holds(tmp_path, tensors)


def test_a_missing_shard_is_named(tmp_path):
    write(str(tmp_path), {f"t{i}": np.zeros(10, np.float32) for i in range(3)}, shard_bytes=40)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match="lacks model-00002-of-00003.safetensors"):
        Tensors(str(tmp_path))


def test_an_index_that_promises_too_much_is_refused(tmp_path):
    write(str(tmp_path), {f"t{i}": np.zeros(10, np.float32) for i in range(2)}, shard_bytes=40)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["t9"] = "model-00001-of-00002.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match="names 't9', which is in none of its files"):
        Tensors(str(tmp_path))


def test_bfloat16(tmp_path):
    values = np.array([1.0, -2.5, 3.140625], np.float32)
    header = json.dumps({"x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    content = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    (tmp_path / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + content)
    tensor = Tensors(str(tmp_path))["x"]
    assert tensor.dtype == jnp.bfloat16
    np.testing.assert_array_equal(tensor.astype(np.float32), values)


def test_a_bucket(request):
    folder = f"memory://{request.node.name}"
    write(folder, TENSORS, shard_bytes=10)
    assert_holds(folder, TENSORS)
    assert paths.is_file(f"{folder}/{INDEX}")


def test_a_truncated_file_is_refused_by_tensor(tmp_path):
    write(str(tmp_path), TENSORS)
    file = tmp_path / SINGLE
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"model.safetensors is truncated: tensor '\w' ends at byte \d+, the file at"):
        Tensors(str(tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"short", pickle.dumps({"a": 1}), (10**9).to_bytes(8, "little"), (2).to_bytes(8, "little") + b"[]"]
)
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / SINGLE).write_bytes(content)
    with pytest.raises(ValueError, match="is no safetensors file, or not all of one"):
        Tensors(str(tmp_path))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]},
            "tensor 'x' has dtype I8; there are F64, F32, F16, BF16",
        ),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, r"tensor 'x' of F32 \[2\] does not take 4 bytes"),
    ],
)
def test_tensors_that_make_no_sense_are_named(tmp_path, entry, message):
    header = json.dumps({"x": entry}).encode()
    (tmp_path / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ValueError, match=message):
        Tensors(str(tmp_path))


def test_pickles_are_never_read(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(UserError, match="pytorch_model.bin is pickled and never read"):
        Tensors(str(tmp_path))
