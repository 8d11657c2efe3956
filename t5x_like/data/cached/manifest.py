"""The manifest of a cache, and checks that the cache is complete.

A cache is a directory with `pass-000/00000-of-00008.array_record`, … and `manifest.json`, which is written last. Until
then `unfinished/` contains the settings of the cache (`plan.json`) and a record of each complete shard.
"""

import dataclasses
import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fsspec
from array_record.python.array_record_module import ArrayRecordReader

from t5x_like import paths
from t5x_like.data.cached.layout import Layout
from t5x_like.data.skipped_records import DAMAGED
from t5x_like.errors import UserError

FORMAT = "t5x_like cache 1"
MANIFEST = "manifest.json"
MIXTURE = "mixture.json"  # next to the directories of the caches of a mixture's tasks
UNFINISHED = "unfinished"
PLAN = "plan.json"
# Errors that a file with other contents than a manifest's causes.
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_DIGEST_BYTES = 16
_READ_BYTES = 2**22

Skipped = Mapping[str, Mapping[str, int]]
"""File -> reason -> number of records that could not be read and were skipped (`ON_BAD_RECORD=skip`)."""


@dataclasses.dataclass(frozen=True)
class StoredFile:
    """A file of records, one per row.

    Attributes:
      file: Path relative to the directory.
      rows: Number of rows.
      size: Size of the file in bytes.
      checksum: BLAKE2b hash of the file, 128 bits in hexadecimal.
    """

    file: str
    rows: int
    size: int
    checksum: str


@dataclasses.dataclass(frozen=True)
class Shard(StoredFile):
    """A file of rows of a cache. `file` is empty if the shard has no rows.

    Attributes:
      number_of_pass: Index of the pass, starting at 0.
      examples: Number of examples packed into the rows.
      tokens: For each track, number of items that are not padding.
      skipped: File of the data -> reason -> number of its records that were skipped. The manifest of a complete cache
        has this for all shards, also for those without rows: `Manifest.skipped`.
    """

    number_of_pass: int
    examples: int
    tokens: tuple[int, ...]
    skipped: Skipped = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Shard":
        """Returns the shard that `dataclasses.asdict` converted."""
        return cls(**{**stored, "tokens": tuple(stored["tokens"])})


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Description of a complete cache.

    Attributes:
      settings: Settings that determine the contents, such as task, split, seed and passes; see `writer.Plan`.
      layout: Layout of the rows.
      dtypes: Storage dtype of each value of a row.
      vocabularies: Task feature -> `ids` (their number), `kind`, `sample`, a hash of the text of some ids,
        and `digest` (`vocabularies.vocabulary_digest`); for labels also their `names`.
      shards: Shards in order.
      versions: Library -> version that wrote the cache.
      add_eos: Task feature -> whether its text ends in EOS; empty for caches of earlier versions.
      skipped: Shard -> what its writer has skipped; shards that have skipped nothing are left out.
    """

    settings: Mapping[str, Any]
    layout: Layout
    dtypes: tuple[str, ...]
    vocabularies: Mapping[str, Mapping[str, Any]]
    shards: tuple[Shard, ...]
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    add_eos: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    skipped: Mapping[str, Skipped] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of everything that determines what a run reads, including the checksums of the shards."""
        stored = self._to_json()
        decisive = {name: value for name, value in stored.items() if name not in ("versions", "add_eos", "skipped")}
        return hashlib.blake2b(_json(decisive).encode(), digest_size=8).hexdigest()

    @property
    def rows_of_passes(self) -> list[int]:
        """Number of rows of each pass."""
        rows = [0] * (1 + max((shard.number_of_pass for shard in self.shards), default=0))
        for shard in self.shards:
            rows[shard.number_of_pass] += shard.rows
        return rows

    @property
    def skipped_in_first_pass(self) -> Counter[str]:
        """Reason -> number of records that the first pass has skipped; of damaged files, the number of files."""
        first = [skipped for shard, skipped in self.skipped.items() if shard.startswith(_prefix(0))]
        found = sum((Counter(counts) for skipped in first for counts in skipped.values()), Counter())
        # Each shard that reads a part of a file counts its damage.
        damaged = {path for skipped in first for path, counts in skipped.items() if DAMAGED in counts}
        return Counter({**found, DAMAGED: len(damaged)} if damaged else found)

    @property
    def tokens(self) -> dict[str, int]:
        """Track, with its features joined by `+` -> number of items that are not padding."""
        names = ["+".join(track) for track in self.layout.tracks]
        return {name: sum(shard.tokens[index] for shard in self.shards) for index, name in enumerate(names)}

    def write(self, directory: str) -> None:
        """Writes the manifest, which completes the cache in `directory`."""
        stored = self._to_json() | {"fingerprint": self.fingerprint}
        paths.write_atomic(paths.join(directory, MANIFEST), json.dumps(stored, indent=1) + "\n")

    def _to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "settings": dict(self.settings),
            "layout": self.layout.to_json(),
            "dtypes": list(self.dtypes),
            "vocabularies": {name: dict(about) for name, about in self.vocabularies.items()},
            "shards": [_without_skipped(shard) for shard in self.shards],
            "versions": dict(self.versions),
            "add_eos": dict(self.add_eos),
            "skipped": dict(self.skipped),
        }


def read(directory: str) -> Manifest:
    """Reads the manifest of the cache in `directory`.

    Raises:
      UserError: no cache is found, the cache is incomplete, or its manifest is damaged or has another format.
    """
    path = paths.join(directory, MANIFEST)
    if not paths.exists(path):
        done = [name for name in paths.listdir(paths.join(directory, UNFINISHED)) if name != PLAN]
        if done or paths.exists(paths.join(directory, UNFINISHED, PLAN)):
            raise UserError(
                f"the cache {directory} is incomplete: {MANIFEST} not found, {len(done)} shards are complete. Repeat "
                "the `t5x_like cache` command that writes it; it continues with the missing shards."
            )
        if paths.exists(paths.join(parent := directory.rstrip("/").rpartition("/")[0], MIXTURE)):
            raise UserError(
                f"{parent} contains the caches of a mixture. Read them with --gin_file=data/cached_mixture.gin, or "
                "give the directory of one task."
            )
        raise UserError(f"{directory} is not a cache: {MANIFEST} not found. Write a cache with `t5x_like cache`.")
    try:
        stored = json.loads(paths.read_text(path))
        if stored["format"] != FORMAT:
            raise ValueError(f"its format is {stored['format']!r}, but this version reads {FORMAT!r}")
        manifest = Manifest(
            settings=stored["settings"],
            layout=Layout.from_json(stored["layout"]),
            dtypes=tuple(stored["dtypes"]),
            vocabularies=stored["vocabularies"],
            shards=tuple(map(Shard.from_json, stored["shards"])),
            versions=stored["versions"],
            add_eos=stored.get("add_eos", {}),
            skipped=stored.get("skipped", {}),
        )
        for name in ("task", "split"):
            check_name(manifest.settings[name])
        check_inside(manifest.shards)
        if manifest.fingerprint != stored["fingerprint"]:
            raise ValueError(f"its contents have the hash {manifest.fingerprint}, not {stored['fingerprint']}")
    except MALFORMED as error:
        raise UserError(
            f"{path} is not a valid manifest of a cache: {error}. Copy or write the cache again."
        ) from error
    return manifest


def shard_name(unit: tuple[int, int]) -> str:
    """Returns the name of a shard, given its pass and its number."""
    return f"{_prefix(unit[0])}{unit[1]:05d}"


def _prefix(number_of_pass: int) -> str:
    """Returns how the names of the shards of a pass begin."""
    return f"{number_of_pass:03d}-"


def _without_skipped(shard: Shard) -> dict[str, Any]:
    stored = dataclasses.asdict(shard)
    del stored["skipped"]
    return stored | {"tokens": list(shard.tokens)}


def check_name(value: Any) -> None:
    """Raises a ValueError unless a value of a manifest, such as a task, is the name of a directory."""
    if not paths.is_name(value):
        raise ValueError(f"{value!r:.80} is not the name of a directory")


def check_inside(shards: Sequence[StoredFile]) -> None:
    """Raises a ValueError unless all files of a manifest are in its directory."""
    for shard in shards:
        if not paths.is_inside(shard.file):
            raise ValueError(f"{shard.file!r:.80} is not a file in its directory")


def check_files(
    directory: str,
    shards: Sequence[StoredFile],
    *,
    checksums: bool = False,
    kind: str = "cache",
    command: str = "cache",
) -> None:
    """Checks that the files of a cache are neither missing nor truncated nor, with `checksums`, altered.

    The sizes need only one listing of the directory. Without `checksums`, an altered byte is still detected when its
    row is read, by ArrayRecord's own hash of each record.

    Args:
      directory: Directory of the cache, or of a sidecar.
      shards: Its files.
      checksums: Whether to read every file and compare its checksum too.
      kind: What the directory is, for messages.
      command: Command that writes it, for messages.

    Raises:
      UserError: a file is missing, truncated or altered; the message names it.
    """
    found = sizes(directory)
    rewrite = f"repeat the `t5x_like {command}` command of the {kind}, which writes the file again."
    for shard in shards:
        if shard.file not in found:
            raise UserError(
                f"the {kind} {directory} is incomplete: {shard.file} not found. Copy the file, or {rewrite}"
            )
        if found[shard.file] != shard.size:
            raise UserError(
                f"{shard.file} in the {kind} {directory} is truncated or altered: it has {found[shard.file]} bytes, "
                f"the manifest says {shard.size}. Copy the file, or {rewrite}"
            )
        if checksums and checksum(paths.join(directory, shard.file)) != shard.checksum:
            raise UserError(
                f"{shard.file} in the {kind} {directory} does not match its checksum"
                f"{_first_damage(paths.join(directory, shard.file))}. Copy the file, or delete it and {rewrite}"
            )


def _first_damage(path: str) -> str:
    """Returns where the first record of a file is damaged, by ArrayRecord's hash of each; empty if none is."""
    reader, row = None, 0
    try:
        reader = ArrayRecordReader(path, "readahead_buffer_size:0,max_parallelism:0")
        for row in range(reader.num_records()):
            reader.read([row])
    except (RuntimeError, ValueError, OSError, IndexError) as error:
        return f": row {row} of the file is damaged ({error})" if reader else f": its index is damaged ({error})"
    return ""


def sizes(directory: str) -> dict[str, int]:
    """Returns relative path -> size in bytes of all files below a directory; empty if the directory does not exist."""
    if paths.is_local(directory):
        return dict(_local_sizes(str(paths.local(directory)), ""))
    filesystem, root = fsspec.core.url_to_fs(directory)
    filesystem.invalidate_cache()
    found = filesystem.find(root, detail=True)
    return {name.removeprefix(root).lstrip("/"): about["size"] for name, about in found.items()}


def _local_sizes(directory: str, prefix: str) -> Iterator[tuple[str, int]]:
    """Yields the sizes of local files, five times as fast as fsspec, which describes each file in full."""
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir():
            yield from _local_sizes(entry.path, f"{prefix}{entry.name}/")
        elif entry.is_file():
            yield f"{prefix}{entry.name}", entry.stat().st_size


def checksum(path: str) -> str:
    """Returns the BLAKE2b hash of a file, 128 bits in hexadecimal."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with fsspec.open(path, "rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any], names: Sequence[str] | None = None) -> list[str]:
    """Describes the settings that differ, one entry per setting."""
    names = names or list(dict.fromkeys((*stored, *wanted)))
    stored, wanted = json.loads(_json(stored)), json.loads(_json(wanted))
    return [
        f"{name}: {stored.get(name)!r} in the cache, {wanted.get(name)!r} in this command"
        for name in names
        if stored.get(name) != wanted.get(name)
    ]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
