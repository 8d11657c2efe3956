"""Directories of safetensors files: single, sharded, in a bucket, and invalid."""

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


def assert_tensors_equal(directory, tensors):
    found = Tensors(str(directory))
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found.shapes[name] == tensor.shape
        assert found[name].dtype == tensor.dtype
        np.testing.assert_array_equal(found[name], tensor)


def test_files_of_library_are_read(tmp_path):
    safetensors.numpy.save_file(TENSORS, tmp_path / SINGLE, metadata={"format": "pt"})
    assert_tensors_equal(tmp_path, TENSORS)


def test_library_reads_written_files(tmp_path):
    write(str(tmp_path), TENSORS)
    read = safetensors.numpy.load_file(tmp_path / SINGLE)
    for name, tensor in TENSORS.items():
        np.testing.assert_array_equal(read[name], tensor)


def test_transposed_tensors_are_written_in_c_order(tmp_path):
    write(str(tmp_path), {"t": TENSORS["a"].T})
    assert_tensors_equal(tmp_path, {"t": TENSORS["a"].T})


def test_shards_have_limited_size_and_index(tmp_path):
    tensors = {f"t{i}": np.full((10,), i, np.float32) for i in range(5)}
    write(str(tmp_path), tensors, shard_bytes=80)
    assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == [
        f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)
    ]
    assert json.loads((tmp_path / INDEX).read_text())["metadata"]["total_size"] == 200
    assert_tensors_equal(tmp_path, tensors)


def test_missing_shard_raises(tmp_path):
    write(str(tmp_path), {f"t{i}": np.zeros(10, np.float32) for i in range(3)}, shard_bytes=40)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match="model-00002-of-00003.safetensors not found"):
        Tensors(str(tmp_path))


def test_index_with_unknown_tensor_raises(tmp_path):
    write(str(tmp_path), {f"t{i}": np.zeros(10, np.float32) for i in range(2)}, shard_bytes=40)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["t9"] = "model-00001-of-00002.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match="tensor 't9' not found in any file"):
        Tensors(str(tmp_path))


def test_bfloat16(tmp_path):
    values = np.array([1.0, -2.5, 3.140625], np.float32)
    header = json.dumps({"x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    content = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    (tmp_path / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + content)
    tensor = Tensors(str(tmp_path))["x"]
    assert tensor.dtype == jnp.bfloat16
    np.testing.assert_array_equal(tensor.astype(np.float32), values)


def test_bucket(request):
    directory = f"memory://{request.node.name}"
    write(directory, TENSORS, shard_bytes=10)
    assert_tensors_equal(directory, TENSORS)
    assert paths.is_file(f"{directory}/{INDEX}")


def test_truncated_file_names_tensor(tmp_path):
    write(str(tmp_path), TENSORS)
    file = tmp_path / SINGLE
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"model.safetensors is truncated: tensor '\w' ends at byte \d+"):
        Tensors(str(tmp_path))


def write_raw(directory, header, contents=b""):
    """Writes a file with the given header: bytes, or an object to encode as JSON."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    (directory / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + contents)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


# Dtype codes of the format (safetensors/src/tensor.rs) and their bits per element.
CODES = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6} | {
    code: bits
    for bits, codes in {
        8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
        16: "I16 U16 F16 BF16",
        32: "I32 U32 F32",
        64: "I64 U64 F64 C64",
    }.items()
    for code in codes.split()
}


@pytest.mark.parametrize("code", CODES)
def test_unread_tensors_may_have_any_dtype(tmp_path, code):
    size = 4 * CODES[code] // 8
    write_raw(tmp_path, {"w": entry(), "other": entry(code, (4,), (4, 4 + size))}, bytes(4 + size))
    tensors = Tensors(str(tmp_path))
    assert tensors["w"] == 0 and tensors.shapes["other"] == (4,)
    if code in ("F64", "F32", "F16", "BF16"):
        np.testing.assert_array_equal(tensors["other"].astype(np.float32), 0)
    else:
        with pytest.raises(UserError, match=f"tensor 'other' has dtype {code}, .* Save it as one of F64, F32"):
            tensors["other"]


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64])
def test_buffers_of_other_dtypes_are_ignored(tmp_path, dtype):
    buffer = np.ones(3, dtype)
    safetensors.numpy.save_file({"weight": TENSORS["a"], "buffer": buffer}, tmp_path / SINGLE)
    np.testing.assert_array_equal(Tensors(str(tmp_path))["weight"], TENSORS["a"])


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", r"\(0 bytes\): not a safetensors file, or truncated in its header"),
        (b"short", "truncated in its header"),
        (pickle.dumps({"a": 1}), "truncated in its header"),
        ((10**9).to_bytes(8, "little"), "truncated in its header"),
        ((2).to_bytes(8, "little") + b"[]", "must be a JSON object, not a list"),
    ],
)
def test_other_file_formats_raise(tmp_path, contents, message):
    (tmp_path / SINGLE).write_bytes(contents)
    with pytest.raises(UserError, match=message):
        Tensors(str(tmp_path))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"x": entry("F9")}, "tensor 'x' has unknown dtype 'F9'"),
        ({"x": entry(["F32"])}, r"tensor 'x' has unknown dtype \['F32'\]"),
        ({"x": entry(shape=(2,))}, r"tensor 'x' of F32 \[2\] does not have 4 bytes"),
        ({"x": entry(shape=(-1,))}, r"tensor 'x' has shape \[-1\]"),
        ({"x": entry(shape=(True,))}, "tensor 'x' has shape"),
        ({"x": entry(offsets=(0,))}, "Must be a first and a last byte"),
        ({"x": entry(offsets=(4, 0))}, "does not have -4 bytes"),
        ({"x": entry() | {"strides": []}}, "must have dtype, shape and data_offsets, and no other key"),
        ({"x": "F32"}, "must have dtype, shape and data_offsets"),
        ({"x": entry(), "y": entry()}, "tensors 'x' and 'y' overlap"),
        ({"x": entry(), "y": entry(shape=(2,), offsets=(0, 8))}, "tensors 'x' and 'y' overlap"),
        ({"x": entry(offsets=(4, 8))}, "4 bytes before tensor 'x' are not used by a tensor"),
        ({"x": entry()}, "4 bytes after the last tensor are not used by a tensor"),
        ({"__metadata__": {"n": 1}, "x": entry()}, "__metadata__ must be an object with strings"),
        (b'{"x": 1, "x": 2}', "key 'x' appears more than once"),
        (b'{"x": NaN}', "NaN is not a JSON number"),
        (b'{"x": ', "not valid JSON: Expecting value at line 1"),
        (b'{"\xff": 1}', "not valid UTF-8 at byte 2"),
        (b"\xef\xbb\xbf{}", "not valid JSON: Unexpected UTF-8 BOM"),
        (b'{"x":' * 10**5, "nested too deeply"),
    ],
)
def test_invalid_headers_raise(tmp_path, header, message):
    write_raw(tmp_path, header, bytes(8))
    with pytest.raises(UserError, match=message) as refused:
        Tensors(str(tmp_path))
    assert SINGLE in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"[]", "must be a JSON object"),
        (b"{}", "weight_map must be an object"),
        (b'{"weight_map": {"a": 1}}', "weight_map has 1 for 'a'"),
        (b'{"weight_map": {"a": "../model.safetensors"}}', "weight_map has '../model.safetensors' for 'a'"),
        (b'{"weight_map": {"a": "model.safetensors"', "not valid JSON"),
    ],
)
def test_invalid_index_raises(tmp_path, index, message):
    write(str(tmp_path), TENSORS)
    (tmp_path / INDEX).write_bytes(index)
    with pytest.raises(UserError, match=message) as refused:
        Tensors(str(tmp_path))
    assert INDEX in str(refused.value)


def test_tensor_in_wrong_or_in_two_shards_raises(tmp_path):
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    write(str(tmp_path), {"a": TENSORS["a"], "b": TENSORS["b"]}, shard_bytes=1)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": dict(zip("ba", names, strict=True))}))
    with pytest.raises(UserError, match=f"tensor 'b' is in {names[1]}, not in {names[0]}"):
        Tensors(str(tmp_path))
    (tmp_path / names[1]).write_bytes((tmp_path / names[0]).read_bytes())
    with pytest.raises(UserError, match=f"tensor 'a' is in {names[0]} and in {names[1]}"):
        Tensors(str(tmp_path))


def test_pickled_weights_raise(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(UserError, match="pytorch_model.bin is pickled and not supported"):
        Tensors(str(tmp_path))
