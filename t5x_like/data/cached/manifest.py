"""What a cache says about itself, and whether it is whole.

A cache is a directory: `pass-000/00000-of-00008.array_record`, … and `manifest.json`, which is written last. Until then
`unfinished/` holds what is being written (`plan.json`) and a note for each shard that is complete.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec

from t5x_like import paths
from t5x_like.data.cached.layout import Layout
from t5x_like.errors import UserError

FORMAT = "t5x_like cache 1"
MANIFEST = "manifest.json"
UNFINISHED = "unfinished"
PLAN = "plan.json"
_DIGEST_BYTES = 16
_READ_BYTES = 2**22


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of rows.

    Attributes:
      file: its path in the cache's directory; empty where there are no rows.
      number_of_pass: from 0 on.
      rows: how many it holds.
      examples: how many are packed into them.
      tokens: items that are no padding, in each track.
      size: of the file, in bytes.
      checksum: BLAKE2b of the file, 128 bits in hexadecimal.
    """

    file: str
    number_of_pass: int
    rows: int
    examples: int
    tokens: tuple[int, ...]
    size: int
    checksum: str

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Shard":
        return cls(**{**stored, "tokens": tuple(stored["tokens"])})


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A complete cache.

    Attributes:
      settings: what it was made from and how: task, split, seed, passes and so on; see `writer.Plan`.
      layout: what a row holds.
      dtypes: of each value of a row.
      vocabularies: task feature -> its `ids` (how many), `kind`, and `sample`, a hash of what some ids stand for.
      shards: in order.
      versions: of the libraries that wrote it.
      created: when, ISO 8601.
    """

    settings: Mapping[str, Any]
    layout: Layout
    dtypes: tuple[str, ...]
    vocabularies: Mapping[str, Mapping[str, Any]]
    shards: tuple[Shard, ...]
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    created: str = ""

    @property
    def fingerprint(self) -> str:
        """Tells caches apart: a hash of everything that decides what a run reads, the shards' checksums included."""
        stored = self._to_json()
        decisive = {name: value for name, value in stored.items() if name not in ("versions", "created")}
        return hashlib.blake2b(_json(decisive).encode(), digest_size=8).hexdigest()

    @property
    def rows_of_passes(self) -> list[int]:
        """How many rows each pass has."""
        rows = [0] * (1 + max((shard.number_of_pass for shard in self.shards), default=0))
        for shard in self.shards:
            rows[shard.number_of_pass] += shard.rows
        return rows

    @property
    def tokens(self) -> dict[str, int]:
        """Track, its features joined by `+` -> items that are no padding."""
        names = ["+".join(track) for track in self.layout.tracks]
        return {name: sum(shard.tokens[index] for shard in self.shards) for index, name in enumerate(names)}

    def write(self, directory: str) -> None:
        """Makes the cache in `directory` complete."""
        stored = self._to_json() | {"fingerprint": self.fingerprint}
        paths.write_atomic(paths.join(directory, MANIFEST), json.dumps(stored, indent=1) + "\n")

    def _to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "settings": dict(self.settings),
            "layout": self.layout.to_json(),
            "dtypes": list(self.dtypes),
            "vocabularies": {name: dict(about) for name, about in self.vocabularies.items()},
            "shards": [{**dataclasses.asdict(shard), "tokens": list(shard.tokens)} for shard in self.shards],
            "versions": dict(self.versions),
            "created": self.created,
        }


def read(directory: str) -> Manifest:
    """The manifest of the cache in `directory`.

    Raises:
      UserError: there is no cache, it is still being written or was never finished, or its manifest is damaged or of
        another format.
    """
    path = paths.join(directory, MANIFEST)
    if not paths.exists(path):
        done = [name for name in paths.listdir(paths.join(directory, UNFINISHED)) if name != PLAN]
        if done or paths.exists(paths.join(directory, UNFINISHED, PLAN)):
            raise UserError(
                f"the cache {directory} is half-written ({len(done)} shards are complete, the manifest is missing): "
                "repeat the `t5x_like cache` command that was writing it, which goes on from there"
            )
        raise UserError(f"there is no cache in {directory} (no {MANIFEST}): write one with `t5x_like cache`")
    try:
        stored = json.loads(paths.read_text(path))
        if stored["format"] != FORMAT:
            raise ValueError(f"its format is {stored['format']!r}, this version reads {FORMAT!r}")
        manifest = Manifest(
            settings=stored["settings"],
            layout=Layout.from_json(stored["layout"]),
            dtypes=tuple(stored["dtypes"]),
            vocabularies=stored["vocabularies"],
            shards=tuple(map(Shard.from_json, stored["shards"])),
            versions=stored["versions"],
            created=stored["created"],
        )
        if manifest.fingerprint != stored["fingerprint"]:
            raise ValueError(f"its contents hash to {manifest.fingerprint}, not to {stored['fingerprint']}")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no manifest of a cache, or a damaged one: {error}") from error
    return manifest


def check_files(directory: str, manifest: Manifest, *, checksums: bool = False) -> None:
    """Refuses a cache whose files are missing, cut off or, with `checksums`, altered.

    Sizes are compared in one listing of the directory. Without `checksums`, a byte that changed is still found when its
    row is read, by ArrayRecord's own hash of each record.

    Args:
      directory: of the cache.
      manifest: what it says.
      checksums: whether to read every file and compare its hash too.

    Raises:
      UserError: naming the file.
    """
    there = sizes(directory)
    for shard in manifest.shards:
        if shard.file not in there:
            raise UserError(f"the cache {directory} has lost {shard.file}: copy it again, or {_AGAIN}")
        if there[shard.file] != shard.size:
            raise UserError(
                f"{shard.file} in the cache {directory} has {there[shard.file]} bytes and had {shard.size} when it was "
                f"written: copy it again, or {_AGAIN}"
            )
        if checksums and checksum(paths.join(directory, shard.file)) != shard.checksum:
            raise UserError(
                f"{shard.file} in the cache {directory} does not match its checksum: copy it again, or delete it and "
                f"{_AGAIN}"
            )


_AGAIN = "repeat the `t5x_like cache` command that wrote the cache, which writes this file anew"


def sizes(directory: str) -> dict[str, int]:
    """Path below `directory` -> bytes, of all files, in one listing; nothing where there is no such directory."""
    filesystem, root = fsspec.core.url_to_fs(directory)
    filesystem.invalidate_cache()
    found = filesystem.find(root, detail=True)
    return {name.removeprefix(root).lstrip("/"): about["size"] for name, about in found.items()}


def checksum(path: str) -> str:
    """BLAKE2b of a file's contents, 128 bits in hexadecimal."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with fsspec.open(path, "rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any], names: Sequence[str] | None = None) -> list[str]:
    """The settings that differ, a line each."""
    names = names or list(dict.fromkeys((*stored, *wanted)))
    stored, wanted = json.loads(_json(stored)), json.loads(_json(wanted))
    return [
        f"{name}: {stored.get(name)!r} there, {wanted.get(name)!r} here"
        for name in names
        if stored.get(name) != wanted.get(name)
    ]


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
