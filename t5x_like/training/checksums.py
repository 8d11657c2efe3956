"""Checksums of the files in a directory, stored next to them, so that damaged files are detected before use."""

import concurrent.futures
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping

from etils import epath

# CRC-32 detects any burst of up to 32 damaged bits, and is faster than storage.
ALGORITHM = "crc32"
MANIFEST = "checksums.json"
_PART = "checksums_process_{}.json"
_PART_PREFIX = _PART.partition("{}")[0]
_BLOCK_BYTES = 1 << 24
_THREADS = 4


class DamagedFile(Exception):
    """A file is missing or does not match its checksum. The message names the file."""


def write_part(directory: epath.Path, below: str, process: int) -> None:
    """Stores the checksums of the files that process `process` has written to `directory/below`."""
    if (directory / below).is_dir():
        _store(directory, _PART.format(process), (f"{below}/{name}" for name in _files(directory / below)))


def write(directory: epath.Path) -> None:
    """Stores the checksums of all files in `directory` that `write_part` has not covered in any process."""
    covered = {MANIFEST}
    for name in _parts(directory):
        covered |= _read(directory, name).keys()
    _store(directory, MANIFEST, (name for name in _files(directory) if name not in covered))


def verify(directory: epath.Path, process_index: int = 0, process_count: int = 1) -> bool:
    """Compares the files in `directory` with their checksums.

    Several processes can divide the work: each one checks the existence and size of all files, and the checksums of
    its share.

    Args:
      directory: the directory that `write` was called on.
      process_index: index of this process.
      process_count: number of processes.

    Returns:
      Whether the directory has checksums.

    Raises:
      DamagedFile: a file is missing or does not match its checksum.
    """
    if not (directory / MANIFEST).exists():
        return False
    expected = _read(directory, MANIFEST)
    for name in filter(_is_part, list(expected)):
        _check_size(directory / name, expected[name])
        _compare(directory, name, expected[name])
        expected |= _read(directory, name)
    for name, entry in sorted(expected.items()):
        _check_size(directory / name, entry)
    mine = sorted(expected)[process_index::process_count]
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda name: _compare(directory, name, expected[name]), mine):
            pass
    return True


def _check_size(path: epath.Path, entry: Mapping) -> None:
    if not path.exists():
        raise DamagedFile(f"{path} is missing")
    if (size := path.stat().length) != entry["bytes"]:
        raise DamagedFile(f"{path} has {size} bytes instead of {entry['bytes']}")


def _compare(directory: epath.Path, name: str, entry: Mapping) -> None:
    if _checksum(directory / name) != entry[ALGORITHM]:
        raise DamagedFile(f"{directory / name} does not match its checksum")


def _is_part(name: str) -> bool:
    return name.startswith(_PART_PREFIX)


def _parts(directory: epath.Path) -> list[str]:
    return [entry.name for entry in directory.iterdir() if _is_part(entry.name)]


def _files(directory: epath.Path, prefix: str = "") -> Iterator[str]:
    for entry in directory.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name


def _read(directory: epath.Path, name: str) -> dict[str, dict]:
    try:
        return dict(json.loads((directory / name).read_text()))
    except ValueError as error:
        raise DamagedFile(f"{directory / name} is not valid JSON") from error


def _store(directory: epath.Path, name: str, files: Iterable[str]) -> None:
    files = sorted(files)
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        sums = list(pool.map(lambda file: _checksum(directory / file), files))
    entries = {
        file: {"bytes": (directory / file).stat().length, ALGORITHM: value}
        for file, value in zip(files, sums, strict=True)
    }
    (directory / name).write_text(json.dumps(entries, indent=1) + "\n")


def _checksum(path: epath.Path) -> str:
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            value = zlib.crc32(block, value)
    return f"{value:08x}"
