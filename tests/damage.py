"""Damages one file of a directory at random, and checks that a reader of the directory recognizes it."""

import dataclasses
import random
import shutil
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from t5x_like.errors import RunFailed, UserError

_SHOWN_FAILURES = 10


@dataclasses.dataclass(frozen=True)
class Artefact:
    """A directory, and what reads it.

    Attributes:
      directory: The intact directory.
      read: Reads a copy of it. The result can be compared.
      texts: Names of files in which another value is an edit that cannot be recognized: they may change the result.
      removable: Names of files that a user deletes to accept a change of others.
      payload: Returns the ranges of bytes of a file that have no checksum, such as the weights of a published model.
    """

    directory: Path
    read: Callable[[Path], Any]
    texts: Collection[str] = ()
    removable: Collection[str] = ()
    payload: Callable[[Path], list[range]] = lambda path: []


def check(artefact: Artefact, cases: int, seed: int, workspace: Path) -> None:
    """Reads damaged copies of a directory: a UserError or RunFailed that names a path, or the result of the intact one.

    Args:
      artefact: The directory.
      cases: Number of copies. In each, a file is truncated or deleted, or a bit or byte of it is changed.
      seed: Seed of the first copy; the seed of each failure is shown.
      workspace: A directory for the copies.
    """
    expected = artefact.read(_copy(artefact, workspace))
    failures = [
        failure
        for number in range(seed, seed + cases)
        if (failure := _failure(artefact, expected, random.Random(number), workspace, number)) is not None
    ]
    assert not failures, f"{len(failures)} of {cases} cases:\n" + "\n".join(failures[:_SHOWN_FAILURES])


def _failure(artefact: Artefact, expected: Any, rng: random.Random, workspace: Path, number: int) -> str | None:
    copy = _copy(artefact, workspace)
    file, change = _damage(copy, artefact.payload, rng)
    shown = f"seed {number}: {file.relative_to(copy)} {change}"
    try:
        result = artefact.read(copy)
    except (UserError, RunFailed) as error:
        message = str(error)
        return None if copy.name in message or file.name in message else f"{shown}: no path in {message!r}"
    except (Exception, SystemExit) as error:
        return f"{shown}: {''.join(traceback.format_exception(error)[-4:])}"
    may_differ = file.name in artefact.texts or (change == "deleted" and file.name in artefact.removable)
    return None if result == expected or may_differ else f"{shown}: another result, without an error"


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
