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
    with pytest.raises(UserError, match=r"model.safetensors is truncated: tensor '\w' ends at byte \d+"):
        Tensors(str(tmp_path))


def write_raw(folder, header, contents=b""):
    """A file with a header as given: bytes, or what JSON can say."""
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + contents)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


# The codes of the format (safetensors/src/tensor.rs), with the bits of an element.
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
def test_unused_tensors_may_have_any_dtype(tmp_path, code):
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
def test_buffers_that_the_library_wrote_do_not_hinder(tmp_path, dtype):
    buffer = np.ones(3, dtype)
    safetensors.numpy.save_file({"weight": TENSORS["a"], "buffer": buffer}, tmp_path / SINGLE)
    np.testing.assert_array_equal(Tensors(str(tmp_path))["weight"], TENSORS["a"])


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", r"\(0 bytes\): not a safetensors file, or truncated within its header"),
        (b"short", "truncated within its header"),
        (pickle.dumps({"a": 1}), "truncated within its header"),
        ((10**9).to_bytes(8, "little"), "truncated within its header"),
        ((2).to_bytes(8, "little") + b"[]", "must hold a JSON object, not a list"),
    ],
)
def test_other_files_are_refused(tmp_path, contents, message):
    (tmp_path / SINGLE).write_bytes(contents)
    with pytest.raises(UserError, match=message):
        Tensors(str(tmp_path))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"x": entry("F9")}, "tensor 'x' has dtype 'F9', which the format does not have"),
        ({"x": entry(["F32"])}, r"tensor 'x' has dtype \['F32'\]"),
        ({"x": entry(shape=(2,))}, r"tensor 'x' of F32 \[2\] does not take 4 bytes"),
        ({"x": entry(shape=(-1,))}, r"tensor 'x' has shape \[-1\]"),
        ({"x": entry(shape=(True,))}, "tensor 'x' has shape"),
        ({"x": entry(offsets=(0,))}, "must have a first and a last byte"),
        ({"x": entry(offsets=(4, 0))}, "does not take -4 bytes"),
        ({"x": entry() | {"strides": []}}, "a dtype, a shape and data_offsets, and nothing else"),
        ({"x": "F32"}, "a dtype, a shape and data_offsets"),
        ({"x": entry(), "y": entry()}, "tensors 'x' and 'y' overlap"),
        ({"x": entry(), "y": entry(shape=(2,), offsets=(0, 8))}, "tensors 'x' and 'y' overlap"),
        ({"x": entry(offsets=(4, 8))}, "4 bytes before tensor 'x' belong to no tensor"),
        ({"x": entry()}, "4 bytes after the last tensor belong to no tensor"),
        ({"__metadata__": {"n": 1}, "x": entry()}, "__metadata__ must be an object of strings"),
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
        (b"[]", "must hold a JSON object"),
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


def test_a_tensor_in_two_shards_or_another_one_than_the_index_says_is_refused(tmp_path):
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    write(str(tmp_path), {"a": TENSORS["a"], "b": TENSORS["b"]}, shard_bytes=1)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": dict(zip("ba", names, strict=True))}))
    with pytest.raises(UserError, match=f"names {names[0]} for 'b', which is in {names[1]}"):
        Tensors(str(tmp_path))
    (tmp_path / names[1]).write_bytes((tmp_path / names[0]).read_bytes())
    with pytest.raises(UserError, match=f"tensor 'a' is both in {names[0]} and in {names[1]}"):
        Tensors(str(tmp_path))


def test_pickles_are_never_read(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(UserError, match="pytorch_model.bin is pickled and never read"):
        Tensors(str(tmp_path))
