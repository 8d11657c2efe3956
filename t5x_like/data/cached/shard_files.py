"""The files of shards while they are written: a shard appears under its final name only when it is complete."""

import contextlib
import os
import re
import socket
import tempfile
from collections.abc import Iterator

import fsspec

from t5x_like import paths

# Rows and their records are read one at a time, so each is its own block. Compression would make a row of 626 tokens a
# fifth smaller, but reading it would take 1.5 times as long.
WRITER_OPTIONS = "group_size:1,uncompressed"

# What to do if the storage is full.
ADVICE = "Free space or repair the storage, then repeat the command, which resumes after the complete shards."
# The name of a temporary file ends with the host and the id of the process that writes it.
TEMPORARY = re.compile(r"\..+\.array_record\.(?P<host>.+)-(?P<process>\d+)\.tmp")


@contextlib.contextmanager
def local_file(target: str) -> Iterator[str]:
    """Yields a local path to write to: next to a local target, otherwise in a temporary directory."""
    if not paths.is_local(target):
        with tempfile.TemporaryDirectory() as directory:
            yield os.path.join(directory, "shard")
        return
    path = paths.local(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name is unique to this process, so two processes never write to the same temporary file.
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        yield str(temporary)
    finally:
        temporary.unlink(missing_ok=True)


def remove_stale(directory: str) -> None:
    """Removes temporary files of processes of this machine that were killed while writing."""
    if not paths.is_local(directory):
        return
    for path in paths.local(directory).glob("*/.*.tmp"):
        writer = TEMPORARY.fullmatch(path.name)
        if writer and writer["host"] == socket.gethostname() and not _is_alive(int(writer["process"])):
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process belongs to another user
        return True
    return True


def store(local: str, target: str) -> None:
    """Moves a finished file to its target."""
    if not paths.is_local(target):
        filesystem, inner = fsspec.core.url_to_fs(target)
        filesystem.makedirs(inner.rpartition("/")[0], exist_ok=True)
        filesystem.put_file(local, inner)
        return
    with open(local, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(local, paths.local(target))
    paths.sync_directory(paths.local(target).parent)
