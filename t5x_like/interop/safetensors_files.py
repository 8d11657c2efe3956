"""Reads and writes directories of safetensors files, single or sharded, one tensor at a time and without unpickling.

A file consists of a little-endian length, a JSON header with dtype, shape and byte range of each tensor, and the data
(https://huggingface.co/docs/safetensors). This module parses the header itself instead of calling the library, so that
errors name the damaged tensor and files can be in a bucket.
"""

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import fsspec
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.interop import json_files

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9  # largest file size that the Hugging Face Hub recommends

_LENGTH_BYTES = 8
_REPLACE = "Download or export the file again."
_MAX_HEADER_BYTES = 100_000_000  # the library's own limit
# Dtypes of weights. Tensors of other dtypes, such as integer and boolean buffers, are not read.
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
_INTEGERS = {"I8": np.int8, "U8": np.uint8, "I16": np.int16, "I32": np.int32, "I64": np.int64}
# Bits per element of every dtype of the format.
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}


@dataclasses.dataclass(frozen=True)
class _Entry:
    """The header entry of a tensor.

    Attributes:
      dtype: code of the format, such as `F32`.
      shape: shape of the tensor.
      first: offset of its first byte in the data.
      last: offset after its last byte in the data.
    """

    dtype: str
    shape: tuple[int, ...]
    first: int
    last: int


class Tensors(Mapping[str, np.ndarray]):
    """The tensors of a directory by name. Each access reads one floating-point tensor.

    Args:
      directory: local directory or bucket with `model.safetensors`, or with an index and its shards.
      only: name of the only file to read; None for the files of a model.

    Attributes:
      shapes: name -> shape of every tensor.

    Raises:
      UserError: the directory has no safetensors, a shard is missing, or a file or the index is invalid.
    """

    def __init__(self, directory: str, only: str | None = None):
        self._directory = directory
        self._entries: dict[str, tuple[str, int, _Entry]] = {}
        weight_map = _weight_map(directory) if only is None and INDEX in paths.listdir(directory) else None
        for file in _files(directory, weight_map) if only is None else [only]:
            start, header = _header(paths.join(directory, file))
            for name, entry in header.items():
                if name in self._entries:
                    raise UserError(f"{directory}: tensor {name!r} is in {self._entries[name][0]} and in {file}")
                self._entries[name] = (file, start, entry)
        for name, file in (weight_map or {}).items():
            if name not in self._entries:
                raise UserError(f"{directory}/{INDEX}: tensor {name!r} not found in any file")
            if self._entries[name][0] != file:
                raise UserError(f"{directory}/{INDEX}: tensor {name!r} is in {self._entries[name][0]}, not in {file}")
        self.shapes = {name: entry.shape for name, (_, _, entry) in self._entries.items()}

    @property
    def num_bytes(self) -> int:
        """The bytes of all tensors in the files."""
        return sum(entry.last - entry.first for _, _, entry in self._entries.values())

    def __getitem__(self, name: str) -> np.ndarray:
        """Reads a tensor.

        Raises:
          UserError: the tensor is not a floating-point tensor.
        """
        self.check_dtype(name)
        return self._read(name, _DTYPES)

    def integers(self, name: str) -> np.ndarray:
        """Reads a tensor of integers.

        Raises:
          UserError: the tensor has another dtype.
        """
        file, _, entry = self._entries[name]
        if entry.dtype not in _INTEGERS:
            raise UserError(
                f"{paths.join(self._directory, file)}: tensor {name!r} has dtype {entry.dtype}, not integers. "
                f"{_REPLACE}"
            )
        return self._read(name, _INTEGERS)

    def _read(self, name: str, dtypes: Mapping[str, Any]) -> np.ndarray:
        file, start, entry = self._entries[name]
        with fsspec.open(paths.join(self._directory, file), "rb") as stream:
            stream.seek(start + entry.first)
            contents = stream.read(entry.last - entry.first)
        return np.frombuffer(contents, dtypes[entry.dtype]).reshape(entry.shape)

    def check_dtype(self, name: str) -> None:
        """Checks that a tensor can be read.

        Raises:
          UserError: the tensor is not a floating-point tensor.
        """
        file, _, entry = self._entries[name]
        if entry.dtype not in _DTYPES:
            raise UserError(
                f"{paths.join(self._directory, file)}: tensor {name!r} has dtype {entry.dtype}, which is not supported "
                f"for weights. Save it as one of {', '.join(_DTYPES)}."
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def tensor_ranges(path: str) -> tuple[int, list[tuple[int, int]]]:
    """Returns the offset of the data in a file, and the first and last byte of each tensor in the data.

    Args:
      path: the file, local or in a bucket.

    Raises:
      UserError: the file is not valid.
    """
    start, header = _header(path)
    return start, sorted((entry.first, entry.last) for entry in header.values())


def write(
    directory: str, tensors: Mapping[str, np.ndarray], *, shard_bytes: int = SHARD_BYTES, file: str = SINGLE
) -> None:
    """Writes tensors for transformers: one file, or several shards with an index.

    Args:
      directory: local directory or bucket, created if missing.
      tensors: name -> tensor.
      shard_bytes: largest size of a shard in bytes. A larger tensor gets a shard of its own.
      file: name of the file if there is one shard.
    """
    shards: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = np.asarray(tensor, order="C")
        size += tensor.nbytes
    if len(shards) == 1:
        names = [file]
    else:
        names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        paths.write_atomic(paths.join(directory, name), safetensors.numpy.save(shard, metadata={"format": "pt"}))
    if len(shards) > 1:
        weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        paths.write_atomic(paths.join(directory, INDEX), json.dumps(index, indent=2) + "\n")


def _weight_map(directory: str) -> dict[str, str]:
    """Reads the index: tensor name -> file name within the directory."""
    path = paths.join(directory, INDEX)
    found = json_files.read(path).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise UserError(f"{path}: weight_map must be an object that maps tensor names to files")
    for name, file in found.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or set(file) & set("/\\"):
            raise UserError(f"{path}: weight_map has {file!r} for {name!r}. Give the name of a .safetensors file.")
    return found


def _files(directory: str, weight_map: Mapping[str, str] | None) -> list[str]:
    present = paths.listdir(directory)
    if weight_map:
        files = sorted(set(weight_map.values()))
        if missing := [file for file in files if file not in present]:
            raise UserError(f"{directory}: {missing[0]} not found. {INDEX} lists it ({len(files)} files in total).")
        return files
    if SINGLE in present:
        return [SINGLE]
    pickled = [name for name in present if name.endswith((".bin", ".pt", ".ckpt"))]
    hint = f". {pickled[0]} is pickled and not supported. Save it with safe_serialization=True" if pickled else ""
    raise UserError(f"{directory}: neither {SINGLE} nor {INDEX} found{hint}")


def _header(path: str) -> tuple[int, dict[str, _Entry]]:
    """Reads the header of a file.

    Returns:
      The offset of the data in the file, and name -> header entry.

    Raises:
      UserError: the file violates a rule of the format that the safetensors library enforces.
    """
    with fsspec.open(path, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        start = _LENGTH_BYTES + length
        if size < _LENGTH_BYTES or start > size:
            raise UserError(f"{path} ({size} bytes): not a safetensors file, or truncated in its header. {_REPLACE}")
        if length > _MAX_HEADER_BYTES:
            raise UserError(f"{path}: header of {length} bytes. The format allows {_MAX_HEADER_BYTES}.")
        header = json_files.parse(stream.read(length), path)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise UserError(f"{path}: __metadata__ must be an object with strings")
    entries = {name: _entry(path, name, header_entry) for name, header_entry in header.items()}
    _check_layout(path, entries, size - start)
    return start, entries


def _entry(path: str, name: str, header_entry: Any) -> _Entry:
    """Parses and checks the header entry of one tensor."""
    subject = f"{path}: tensor {name!r}"
    if not isinstance(header_entry, dict) or set(header_entry) != {"dtype", "shape", "data_offsets"}:
        raise UserError(f"{subject} must have dtype, shape and data_offsets, and no other key. {_REPLACE}")
    dtype, shape, offsets = header_entry["dtype"], header_entry["shape"], header_entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise UserError(f"{subject} has unknown dtype {dtype!r}. Known dtypes: {', '.join(_BITS)}.")
    for field, values in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 2**63 for value in values):
            raise UserError(f"{subject} has {field} {values!r}. Must be a list of non-negative integers.")
    if len(offsets) != 2:
        raise UserError(f"{subject} has data_offsets {offsets}. Must be a first and a last byte.")
    if 8 * (offsets[1] - offsets[0]) != math.prod(shape) * _BITS[dtype]:
        raise UserError(f"{subject} of {dtype} {shape} does not have {offsets[1] - offsets[0]} bytes. {_REPLACE}")
    return _Entry(dtype, tuple(shape), *offsets)


def _check_layout(path: str, entries: Mapping[str, _Entry], size: int) -> None:
    """Checks that the tensors cover every byte of the data exactly once."""
    end, before = 0, None
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].first, item[1].last)):
        if entry.last > size:
            raise UserError(
                f"{path} is truncated: tensor {name!r} ends at byte {entry.last} of the data, of {size}. {_REPLACE}"
            )
        if entry.first < end:
            raise UserError(f"{path}: tensors {before!r} and {name!r} overlap. {_REPLACE}")
        if entry.first > end:
            raise UserError(
                f"{path}: {entry.first - end} bytes before tensor {name!r} are not used by a tensor. {_REPLACE}"
            )
        end, before = entry.last, name
    if end < size:
        raise UserError(f"{path}: {size - end} bytes after the last tensor are not used by a tensor. {_REPLACE}")
