"""Which data a run reads: hashes and sizes that are known without reading the data."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from t5x_like import paths
from t5x_like.data.source import DataSource, TaskSource
from t5x_like.errors import UserError
from t5x_like.runtime import distributed

if TYPE_CHECKING:
    import seqio

# Files whose total size is larger are identified by their names and sizes.
_HASHED_BYTES = 64 * 2**20
# Sizes of more files are not read.
_FILES = 10_000
# How sources describe the contents of their files.
_HASH = re.compile(r"\bhash( of names and sizes)? ([0-9a-f]{8,})\b")


def describe(source: DataSource) -> list[dict[str, Any]]:
    """Returns `source.provenance()`, or the error that a source of the user raises."""
    try:
        return source.provenance()
    except Exception as error:  # the run has checked what it reads
        return [{"name": source.name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}]


def identity(entry: Mapping[str, Any]) -> str | None:
    """Returns what identifies the contents of data, wherever they are: a hash of a cache, of files, or of a source.

    Args:
      entry: An entry of `DataSource.provenance`.

    Returns:
      The hash, with what it is computed from unless it is the contents; None if no hash is known.
    """
    if entry.get("fingerprint"):
        return entry["fingerprint"]
    if entry.get("digest"):
        hashed = entry.get("digest_of", "contents")
        return entry["digest"] if "contents" in hashed else f"{entry['digest']} of {hashed}"
    return ", ".join(f"{digest}{hashed}" for hashed, digest in _HASH.findall(entry.get("source") or "")) or None


def check_agreement(described: Mapping[str, Sequence[Mapping[str, Any]]], vocabulary: str | None) -> None:
    """Checks that all processes of a run have the same data. All of them must call it.

    Args:
      described: Split of the metrics, such as `train` or the name of an evaluation -> the result of `describe`.
      vocabulary: The digest of the vocabulary of the text; None if it is not known.

    Raises:
      UserError: Raised in every process; the message names the process and what differs.
    """
    if jax.process_count() == 1:
        return
    everyone = distributed.compute_everywhere(lambda: {**described, "vocabulary": [{"digest": vocabulary}]})
    for process, found in enumerate(everyone):
        for name, expected in everyone[0].items():
            if found[name] != expected:
                raise UserError(
                    f"process {process} of {len(everyone)} has other data than process 0, {name}: "
                    f"{_difference(found[name], expected)}. Give the same files to all processes."
                )


def _difference(found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> str:
    """Returns the first value that differs between two descriptions."""
    for one, other in zip(found, expected, strict=False):
        for key in one | other:
            if one.get(key) != other.get(key):
                where = f"task {other['task']}, " if "task" in other else ""
                return f"{where}{key} {one.get(key)} instead of {other.get(key)}"
    return f"{len(found)} tasks instead of {len(expected)}"


def of_task(task: "seqio.Task", source: TaskSource) -> dict[str, Any]:
    """Describes the data of a task of a source; see `DataSource.provenance`."""
    found: dict[str, Any] = {"task": task.name, "split": source.split}
    if getattr(source, "use_cached", False):
        return found | {"cache": task.cache_dir, "examples": task.get_cached_stats(source.split).get("examples")}
    if (examples := task.source.num_input_examples(source.split)) is not None:
        found["examples"] = int(examples)
    if hasattr(task.source, "describe"):
        digest = task.source.digest(source.split) if hasattr(task.source, "digest") else {}
        return found | {"source": task.source.describe(), **digest}
    return found | _of_files(task.source.list_shards(source.split))


def _of_files(shards: Sequence[str]) -> Mapping[str, Any]:
    """Describes the files of a task; {} if its shards are not files, such as a function's."""
    names = sorted(map(os.fspath, shards))
    found = {"files": len(names), "first_file": names[0] if names else None}
    if names and not all(map(paths.is_local, names)):
        return found | _digest([name.encode() for name in names], "names")
    if not 0 < len(names) <= _FILES or not all(map(paths.is_file, names)):
        return {}
    sizes = [os.path.getsize(paths.local(name)) for name in names]
    entries = [f"{os.path.basename(name)} {size}\n".encode() for name, size in zip(names, sizes, strict=True)]
    if sum(sizes) > _HASHED_BYTES:
        return found | {"bytes": sum(sizes)} | _digest(entries, "names and sizes")
    entries = [entry + paths.read_bytes(name) for name, entry in zip(names, entries, strict=True)]
    return found | {"bytes": sum(sizes)} | _digest(entries, "names and contents")


def _digest(entries: Iterable[bytes], content: str) -> dict[str, str]:
    return {"digest": hashlib.blake2b(b"".join(entries), digest_size=16).hexdigest(), "digest_of": content}
