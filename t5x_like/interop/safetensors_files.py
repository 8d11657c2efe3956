"""Folders of safetensors files, in one piece or sharded, read tensor by tensor and never by unpickling.

The format is a little-endian length, a JSON header with dtype, shape and byte range of each tensor, and the bytes
(https://huggingface.co/docs/safetensors). The header is read here rather than by the library, so that a damaged file is
refused by the name of the tensor that it hits, and so that files may lie in a bucket.
"""

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

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9  # as large as the hub recommends a file to be

_LENGTH_BYTES = 8
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}


class Tensors(Mapping[str, np.ndarray]):
    """The floating-point tensors of a folder by name; each is read when it is asked for.

    Attributes:
      shapes: the shape of every tensor.
    """

    def __init__(self, folder: str):
        """Reads the headers.

        Args:
          folder: local folder or bucket with `model.safetensors`, or an index and its shards.

        Raises:
          UserError: the folder holds no safetensors, or a shard is missing.
          UserError: a file is no safetensors file, or ends before its tensors do.
        """
        self._folder = folder
        self._entries: dict[str, tuple[str, int, dict[str, Any]]] = {}
        for file in _files(folder):
            start, header = _header(paths.join(folder, file))
            for name, entry in header.items():
                self._entries[name] = (file, start, entry)
        if paths.is_file(paths.join(folder, INDEX)):
            if missing := sorted(set(_weight_map(folder)) - set(self._entries)):
                raise UserError(f"{folder}/{INDEX} names {missing[0]!r}, which is in none of its files")
        self.shapes = {name: tuple(entry["shape"]) for name, (_, _, entry) in self._entries.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        file, start, entry = self._entries[name]
        first, last = entry["data_offsets"]
        with fsspec.open(paths.join(self._folder, file), "rb") as stream:
            stream.seek(start + first)
            contents = stream.read(last - first)
        return np.frombuffer(contents, _DTYPES[entry["dtype"]]).reshape(entry["shape"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def write(folder: str, tensors: Mapping[str, np.ndarray], *, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes tensors as transformers reads them: one file, or shards of at most `shard_bytes` with an index.

    Args:
      folder: local folder or bucket; made where it is missing.
      tensors: by name.
      shard_bytes: a tensor larger than this gets a file of its own.
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
        names = [SINGLE]
    else:
        names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        paths.write_atomic(paths.join(folder, name), safetensors.numpy.save(shard, metadata={"format": "pt"}))
    if len(shards) > 1:
        weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        paths.write_atomic(paths.join(folder, INDEX), json.dumps(index, indent=2) + "\n")


def _weight_map(folder: str) -> dict[str, str]:
    return json.loads(paths.read_text(paths.join(folder, INDEX)))["weight_map"]


def _files(folder: str) -> list[str]:
    present = paths.listdir(folder)
    if INDEX in present:
        files = sorted(set(_weight_map(folder).values()))
        if missing := [file for file in files if file not in present]:
            raise UserError(f"{folder} lacks {missing[0]}, which {INDEX} names ({len(files)} files in all)")
        return files
    if SINGLE in present:
        return [SINGLE]
    pickled = [name for name in present if name.endswith((".bin", ".pt", ".ckpt"))]
    hint = f" ({pickled[0]} is pickled and never read; save it again with safe_serialization=True)" if pickled else ""
    raise UserError(f"{folder} holds neither {SINGLE} nor {INDEX}{hint}")


def _header(path: str | os.PathLike) -> tuple[int, dict[str, Any]]:
    """The byte at which a file's data start, and its header without metadata."""
    with fsspec.open(path, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        start = _LENGTH_BYTES + length
        try:
            if start > size:
                raise ValueError
            header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            tensors = {name: (entry["dtype"], entry["shape"], *entry["data_offsets"]) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"{path} ({size} bytes) is no safetensors file, or not all of one") from None
    for name, (dtype, shape, first, last) in tensors.items():
        if start + last > size:
            raise UserError(f"{path} is truncated: tensor {name!r} ends at byte {start + last}, the file at {size}")
        if dtype not in _DTYPES:
            raise UserError(f"{path}: tensor {name!r} has dtype {dtype}; there are {', '.join(_DTYPES)}")
        if last - first != math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize:
            raise UserError(f"{path}: tensor {name!r} of {dtype} {shape} does not take {last - first} bytes")
    return start, header
