"""Checksums of the files in a directory, stored next to them, so that damaged files are detected before use.

Cloud Storage computes the CRC-32C of each object when it is written. There, one listing of the directory replaces
reading the files, both when the checksums are stored and when they are compared.
"""

import base64
import concurrent.futures
import dataclasses
import json
import os
import zlib
from collections.abc import Collection, Iterable, Mapping

import fsspec
import google_crc32c
from etils import epath

from t5x_like import paths, stores

# CRC-32C, as Cloud Storage: it detects any burst of up to 32 damaged bits, and is faster than storage.
ALGORITHM = "crc32c"
_EARLIER = "crc32"  # of checkpoints of earlier versions
_EXTEND = {ALGORITHM: google_crc32c.extend, _EARLIER: lambda value, block: zlib.crc32(block, value)}
MANIFEST = "checksums.json"
_PART = "checksums_process_{}.json"
_PART_PREFIX = _PART.partition("{}")[0]
_BLOCK_BYTES = 1 << 22
_THREADS = 16


class DamagedFile(Exception):
    """A file is missing or does not match its checksum. The message names the file."""


@dataclasses.dataclass(frozen=True)
class _Stored:
    """A file in a listing: its size, and its CRC-32C in hexadecimal if the store has computed it."""

    bytes: int
    crc32c: str | None = None


def write_part(directory: epath.Path, below: str, process: int) -> None:
    """Stores the checksums of the files that process `process` has written to `directory/below`.

    Does nothing in a store, whose listing `write` reads.
    """
    if paths.is_local(str(directory)) and (files := _list(directory / below)):
        _store(directory, _PART.format(process), {f"{below}/{name}": file for name, file in files.items()})


def write(directory: epath.Path) -> None:
    """Stores the checksums of all files in `directory` that `write_part` has not covered in any process."""
    files = _list(directory)
    covered = {MANIFEST}.union(*_read_all(directory, filter(_is_part, files)))
    _store(directory, MANIFEST, {name: file for name, file in files.items() if name not in covered})


def verify(directory: epath.Path, process_index: int = 0, process_count: int = 1) -> bool:
    """Compares the files in `directory` with their checksums.

    Several processes can divide the work: each one checks the existence and size of all files, and reads the files of
    its share.

    Args:
      directory: The directory that `write` was called on.
      process_index: Index of this process.
      process_count: Number of processes.

    Returns:
      Whether the directory has checksums.

    Raises:
      DamagedFile: A file, or the directory, is missing or does not match its checksum.
    """
    files = _list(directory)
    if not files:
        raise DamagedFile(f"{directory} is missing")
    if MANIFEST not in files:
        return False
    expected = _read(directory, MANIFEST)
    parts = {name: entry for name, entry in expected.items() if _is_part(name)}
    _compare(directory, files, parts, parts)
    for part in _read_all(directory, parts):
        expected |= part
    _compare(directory, files, expected, sorted(expected)[process_index::process_count])
    return True


def _compare(
    directory: epath.Path, files: Mapping[str, _Stored], expected: Mapping[str, Mapping], mine: Collection[str]
) -> None:
    """Checks the existence and size of all expected files, and the checksums of `mine`."""
    for name, entry in sorted(expected.items()):
        if name not in files:
            raise DamagedFile(f"{directory / name} is missing")
        if files[name].bytes != entry["bytes"]:
            raise DamagedFile(f"{directory / name} has {files[name].bytes} bytes instead of {entry['bytes']}")

    def compare(name: str) -> None:
        algorithm = ALGORITHM if ALGORITHM in expected[name] else _EARLIER
        if _checksum(directory / name, files[name], algorithm) != expected[name][algorithm]:
            raise DamagedFile(f"{directory / name} does not match its checksum")

    _map(compare, mine)


def _is_part(name: str) -> bool:
    return name.startswith(_PART_PREFIX)


def _list(directory: epath.Path) -> dict[str, _Stored]:
    """Returns all files below a directory by their relative path; empty if it is missing."""
    if not paths.is_local(str(directory)):
        return _list_store(str(directory))
    root = os.fspath(directory)
    found = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    return {os.path.relpath(path, root): _Stored(os.stat(path).st_size) for path in found}


def _list_store(url: str) -> dict[str, _Stored]:
    filesystem, root = _open_store(url)
    try:
        found = filesystem.find(root, detail=True)
    except Exception as error:  # each store raises its own errors
        raise stores.StoreUnreachable(f"{url} cannot be listed: {error}. Check the network and your access.") from error
    sums = {name: entry.get("crc32c") for name, entry in found.items()}
    return {
        name.removeprefix(f"{root}/"): _Stored(entry["size"], sums[name] and base64.b64decode(sums[name]).hex())
        for name, entry in found.items()
        if name.startswith(f"{root}/") and not name.endswith("/")  # the name of a directory, as some clients create it
    }


def _open_store(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    filesystem, root = fsspec.core.url_to_fs(url.rstrip("/"))
    filesystem.invalidate_cache()
    return filesystem, root


def _read_all(directory: epath.Path, names: Iterable[str]) -> list[dict[str, dict]]:
    return _map(lambda name: _read(directory, name), names)


def _read(directory: epath.Path, name: str) -> dict[str, dict]:
    try:
        found = dict(json.loads(paths.read_bytes(str(directory / name))))
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{directory / name} does not list checksums as JSON") from error
    for file, entry in found.items():
        is_entry = isinstance(entry, dict) and "bytes" in entry and not _EXTEND.keys().isdisjoint(entry)
        if not paths.is_inside(file) or not is_entry:
            raise DamagedFile(
                f"{directory / name} has {file!r:.80}, which is not a file of the checkpoint with a checksum"
            )
    return found


def _store(directory: epath.Path, name: str, files: Mapping[str, _Stored]) -> None:
    names = sorted(files)
    sums = _map(lambda file: _checksum(directory / file, files[file], ALGORITHM), names)
    entries = {file: {"bytes": files[file].bytes, ALGORITHM: value} for file, value in zip(names, sums, strict=True)}
    text = json.dumps(entries, indent=1) + "\n"
    if paths.is_local(str(directory)):
        (directory / name).write_text(text)
    else:  # by one request
        filesystem, root = _open_store(str(directory))
        filesystem.pipe_file(f"{root}/{name}", text.encode())


def _checksum(path: epath.Path, file: _Stored, algorithm: str) -> str:
    """Returns the checksum that the store has computed, or reads the file."""
    if algorithm == ALGORITHM and file.crc32c is not None:
        return file.crc32c
    value = 0
    with path.open("rb") as opened:
        while block := opened.read(_BLOCK_BYTES):
            value = _EXTEND[algorithm](value, block)
    return f"{value:08x}"


def _map(function, values: Iterable) -> list:
    """Calls a function for each value in parallel, because stores and network file systems take long to answer."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, values))
