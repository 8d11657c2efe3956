"""Damages one file of a directory at random, and checks that a reader of the directory recognizes it."""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import random
import shutil
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t5x_like.errors import RunFailed, UserError

_SHOWN_FAILURES = 10
# What reading a small file may take.
SECONDS, BYTES = 10.0, 1 << 30


@dataclasses.dataclass(frozen=True)
class Artefact:
    """A directory, and what reads it.

    Attributes:
      directory: The intact directory.
      read: Reads a copy of it. The result can be compared.
      texts: Names of files in which another value is an edit that cannot be recognized: they may change the result.
      endless: Names of files without a mark of their end, of which the last records may be missing.
      removable: Names of files that a user deletes to accept a change of others.
      payload: Returns the ranges of bytes of a file that have no checksum, such as the weights of a published model.
    """

    directory: Path
    read: Callable[[Path], Any]
    texts: Collection[str] = ()
    removable: Collection[str] = ()
    endless: Collection[str] = ()
    payload: Callable[[Path], list[range]] = lambda path: []


def check(artefact: Artefact, cases: int | None, seed: int, workspace: Path, *, seconds: float | None = None) -> int:
    """Reads damaged copies of a directory: a UserError or RunFailed that names a path, or the result of the intact one.

    Args:
      artefact: The directory.
      cases: Number of copies. In each, a file is truncated or deleted, or a bit or byte of it is changed. None: as many
        as `seconds` allow.
      seed: Seed of the first copy; the seed of each failure is shown.
      workspace: A directory for the copies.
      seconds: How long to continue, at least for one copy.

    Returns:
      The number of copies.
    """
    expected = artefact.read(_copy(artefact, workspace))
    failures, started, number = [], time.monotonic(), seed
    for number in itertools.count(seed) if cases is None else range(seed, seed + cases):
        if (failure := _failure(artefact, expected, random.Random(number), workspace, number)) is not None:
            failures.append(failure)
        if seconds is not None and time.monotonic() - started > seconds:
            break
    cases = number + 1 - seed
    assert not failures, f"{len(failures)} of {cases} cases:\n" + "\n".join(failures[:_SHOWN_FAILURES])
    return cases


def _failure(artefact: Artefact, expected: Any, rng: random.Random, workspace: Path, number: int) -> str | None:
    copy = _copy(artefact, workspace)
    file, change = _damage(copy, artefact.payload, rng)
    shown = f"seed {number}: {file.relative_to(copy)} {change}"
    started = time.monotonic()
    try:
        with memory_limit():
            result = artefact.read(copy)
        if (seconds := time.monotonic() - started) > SECONDS:
            return f"{shown}: read for {seconds:.0f} s"
    except (UserError, RunFailed) as error:
        message = str(error)
        return None if copy.name in message or file.name in message else f"{shown}: no path in {message!r}"
    except (Exception, SystemExit) as error:
        return f"{shown}: {''.join(traceback.format_exception(error)[-4:])}"
    may_differ = file.name in artefact.texts or (change == "deleted" and file.name in artefact.removable)
    may_differ |= change.startswith("truncated") and file.name in artefact.endless
    return None if result == expected or may_differ else f"{shown}: another result, without an error"


@contextlib.contextmanager
def memory_limit() -> Iterator[None]:
    """Raises an error if the process takes more than `BYTES` of memory within the context; on Linux only."""
    if not os.path.exists("/proc/self/clear_refs"):
        yield
        return
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _memory("VmRSS")
    yield
    if (taken := _memory("VmHWM") - before) > BYTES:
        raise MemoryError(f"{taken >> 20:,} MiB of memory")


def _memory(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def _copy(artefact: Artefact, workspace: Path) -> Path:
    copy = workspace / f"copy_of_{artefact.directory.name}"
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(artefact.directory, copy))


def _damage(directory: Path, payload: Callable[[Path], list[range]], rng: random.Random) -> tuple[Path, str]:
    """Damages a file. Returns it, and a description."""
    file = rng.choice(sorted(path for path in directory.rglob("*") if path.is_file()))
    contents = bytearray(file.read_bytes())
    kind = rng.choice(("bit", "bit", "bit", "byte", "byte", "byte", "truncated", "deleted"))
    excluded = payload(file)
    free = [n for n in range(len(contents)) if not any(n in each for each in excluded)]
    if kind == "deleted" or not contents:
        file.unlink()
        return file, "deleted"
    if kind == "truncated" or not free:
        size = rng.randrange(len(contents))
        file.write_bytes(contents[:size])
        return file, f"truncated from {len(contents)} to {size} bytes"
    position = rng.choice(free)
    before = contents[position]
    contents[position] = before ^ (1 << rng.randrange(8)) if kind == "bit" else rng.choice(b'\0"[]{}()-9e,:\x7f\xff@%')
    file.write_bytes(contents)
    return file, f"has byte {contents[position]:#04x} instead of {before:#04x} at {position}"


def digest(tree):
    """Returns a hash of all values of a tree."""
    found = hashlib.sha256()
    for leaf in map(np.asarray, jax.tree.leaves(jax.device_get(tree))):
        found.update(f"{leaf.dtype} {leaf.shape}".encode() + leaf.tobytes())
    return found.hexdigest()


def safetensors_payload(path):
    """Returns the tensors of a safetensors file, which have no checksums."""
    contents = path.read_bytes()
    is_weights = path.suffix == ".safetensors"
    return [range(8 + int.from_bytes(contents[:8], "little"), len(contents))] if is_weights else []
