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
    """A file is missing or does not match its checksum; the message names the file."""


def write_part(folder: epath.Path, below: str, process: int) -> None:
    """Stores the checksums of the files in `folder/below`, which process `process` has written."""
    if (folder / below).is_dir():
        _store(folder, _PART.format(process), (f"{below}/{name}" for name in _files(folder / below)))


def write(folder: epath.Path) -> None:
    """Stores the checksums of all files in `folder` that `write_part` has not covered in any process."""
    covered = {MANIFEST}
    for name in _parts(folder):
        covered |= _read(folder, name).keys()
    _store(folder, MANIFEST, (name for name in _files(folder) if name not in covered))


def verify(folder: epath.Path, share: int = 0, shares: int = 1) -> bool:
    """Compares the files in `folder` with their checksums.

    Args:
      folder: the directory that `write` was called on.
      share: index of this process's share of the files, if several processes divide the work.
      shares: number of shares. Each process checks existence and size of all files.

    Returns:
      Whether the directory has checksums.

    Raises:
      DamagedFile: a file does not match its checksum.
    """
    if not (folder / MANIFEST).exists():
        return False
    expected = _read(folder, MANIFEST)
    for name in filter(_is_part, list(expected)):
        _check_size(folder / name, expected[name])
        _compare(folder, name, expected[name])
        expected |= _read(folder, name)
    for name, entry in sorted(expected.items()):
        _check_size(folder / name, entry)
    mine = sorted(expected)[share::shares]
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda name: _compare(folder, name, expected[name]), mine):
            pass
    return True


def _check_size(path: epath.Path, entry: Mapping) -> None:
    if not path.exists():
        raise DamagedFile(f"{path} is missing")
    if (size := path.stat().length) != entry["bytes"]:
        raise DamagedFile(f"{path} has {size} bytes instead of {entry['bytes']}")


def _compare(folder: epath.Path, name: str, entry: Mapping) -> None:
    if _checksum(folder / name) != entry[ALGORITHM]:
        raise DamagedFile(f"{folder / name} does not match its checksum")


def _is_part(name: str) -> bool:
    return name.startswith(_PART_PREFIX)


def _parts(folder: epath.Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if _is_part(entry.name)]


def _files(folder: epath.Path, prefix: str = "") -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name


def _read(folder: epath.Path, name: str) -> dict[str, dict]:
    try:
        return dict(json.loads((folder / name).read_text()))
    except ValueError as error:
        raise DamagedFile(f"{folder / name} is not valid JSON") from error


def _store(folder: epath.Path, name: str, files: Iterable[str]) -> None:
    files = sorted(files)
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        sums = list(pool.map(lambda file: _checksum(folder / file), files))
    entries = {
        file: {"bytes": (folder / file).stat().length, ALGORITHM: value}
        for file, value in zip(files, sums, strict=True)
    }
    (folder / name).write_text(json.dumps(entries, indent=1) + "\n")


def _checksum(path: epath.Path) -> str:
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            value = zlib.crc32(block, value)
    return f"{value:08x}"
