"""Teacher logits beside the rows of a cache: the manifest of such a sidecar, and its reader.

A sidecar is a directory with one directory `TASK/SPLIT` per cache. It has `rows/00000-of-00012.array_record`, …, with
record n for row n of the cache, and `manifest.json`, which is written last. The cache itself does not change.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t5x_like import paths
from t5x_like.data.attached import Attached
from t5x_like.data.cached import manifest as manifests
from t5x_like.data.cached.logits_rows import KINDS, Stored, decode
from t5x_like.data.cached.manifest import MANIFEST, UNFINISHED, Manifest, StoredFile
from t5x_like.data.cached.shards import Shards
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError

FORMAT = "t5x_like teacher logits 1"
PREFIX = "teacher_logits"
KIND, COMMAND = "teacher logits", "cache_logits"


@dataclasses.dataclass(frozen=True)
class LogitsManifest:
    """Description of the complete teacher logits of a cache.

    Attributes:
      settings: What determines the contents: `cache` (fingerprint of the cache), `spec` (digest of the feature spec),
        `teacher` (its digest, vocabulary and dtype), `temperature`, and `rows` per shard.
      predictions: Prediction of the teacher's objective -> what is stored.
      shards: Files in the order of the rows.
      teacher_path: Where the teacher was read, for messages.
      versions: Library -> version.
    """

    settings: Mapping[str, Any]
    predictions: Mapping[str, Stored]
    shards: tuple[StoredFile, ...]
    teacher_path: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def served(self) -> Mapping[str, Any] | None:
        """What `import_logits` stored of a teacher that is served elsewhere: `rest`, `vocabulary_path`, `lengths`.

        None for a teacher that `cache_logits` ran.
        """
        return self.settings["teacher"].get("served")

    @property
    def fingerprint(self) -> str:
        """Hash of everything that determines what a run reads, including the checksums of the shards."""
        about = ("teacher_path", "versions")
        stored = {name: value for name, value in self._to_json().items() if name not in about}
        text = json.dumps(stored, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def write(self, directory: str) -> None:
        """Writes the manifest, which completes the directory."""
        stored = self._to_json() | {"fingerprint": self.fingerprint}
        paths.write_atomic(paths.join(directory, MANIFEST), json.dumps(stored, indent=1) + "\n")

    @classmethod
    def read(cls, directory: str) -> "LogitsManifest":
        """Reads the manifest in a directory.

        Raises:
          UserError: it is not found, the directory is incomplete, or the manifest is damaged or of another format.
        """
        path = paths.join(directory, MANIFEST)
        if not paths.exists(path):
            if paths.listdir(paths.join(directory, UNFINISHED)):
                raise UserError(
                    f"the {KIND} {directory} are incomplete: {MANIFEST} not found. Repeat the `t5x_like {COMMAND}` "
                    "command that writes them; it continues with the missing files."
                )
            raise UserError(
                f"{directory} has no {KIND}: {MANIFEST} not found. Write them with `t5x_like {COMMAND}` for this cache."
            )
        try:
            stored = json.loads(paths.read_text(path))
            if stored["format"] != FORMAT:
                raise ValueError(f"its format is {stored['format']!r}, but this version reads {FORMAT!r}")
            manifest = cls(
                settings=stored["settings"],
                predictions={name: Stored(**about) for name, about in stored["predictions"].items()},
                shards=tuple(StoredFile(**shard) for shard in stored["shards"]),
                teacher_path=stored["teacher_path"],
                versions=stored["versions"],
            )
            manifests.check_inside(manifest.shards)
            if manifest.fingerprint != stored["fingerprint"]:
                raise ValueError(f"its contents have the hash {manifest.fingerprint}, not {stored['fingerprint']}")
        except manifests.MALFORMED as error:
            raise UserError(f"{path} is not a valid manifest of {KIND}: {error}. Copy or write them again.") from error
        return manifest

    def attached(self, name: str, directory: str) -> tuple[Attached, ...]:
        """Returns the arrays of a batch, `teacher_logits/NAME/PREDICTION/KIND`.

        Args:
          name: Name of the teacher.
          directory: Directory of the teacher logits of all tasks and splits.
        """
        return tuple(
            Attached(
                name=attached_name(name, prediction, kind),
                directory=directory,
                positions=stored.positions,
                width=stored.width_of(kind),
                dtype=stored.dtype_of(kind),
                origin=self.settings["teacher"]["digest"],
            )
            for prediction, stored in self.predictions.items()
            for kind in KINDS
        )

    def _to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "settings": dict(self.settings),
            "predictions": {name: dataclasses.asdict(stored) for name, stored in self.predictions.items()},
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
            "teacher_path": self.teacher_path,
            "versions": dict(self.versions),
        }


def attached_name(teacher: str, prediction: str, kind: str) -> str:
    """Returns the name of an array in a batch."""
    return f"{PREFIX}/{teacher}/{prediction}/{kind}"


def directory_of(directory: str, cache: Manifest) -> str:
    """Returns the directory of one cache's teacher logits within the directory of all."""
    return paths.join(directory, cache.settings["task"], cache.settings["split"])


def read_all(directory: str) -> dict[str, LogitsManifest]:
    """Reads the manifests of all tasks and splits of a directory.

    Returns:
      `TASK/SPLIT` -> manifest.

    Raises:
      UserError: there are none, one is incomplete, or they were not written by one command.
    """
    found = {
        f"{task}/{split}": LogitsManifest.read(paths.join(directory, task, split))
        for task in sorted(paths.listdir(directory))
        for split in sorted(paths.listdir(paths.join(directory, task)))
    }
    if not found:
        raise UserError(
            f"TEACHER_LOGITS={directory}: no {KIND} found. Write them with `t5x_like {COMMAND}`, or give another "
            "directory."
        )
    (first, reference), *others = found.items()
    for name, other in others:
        for setting in ("teacher", "spec", "temperature"):
            if other.settings[setting] != reference.settings[setting]:
                raise UserError(
                    f"{directory}: {first} and {name} have a different {setting}. Write both with one `t5x_like "
                    f"{COMMAND}` command."
                )
        if other.predictions != reference.predictions:
            raise UserError(
                f"{directory}: {first} and {name} have different predictions, k, dtype or lengths. Write both with one "
                f"`t5x_like {COMMAND}` command."
            )
    return found


# ---- reading ---------------------------------------------------------------------------------------------------------


def check(cache: Manifest, spec: FeatureSpec, *, checksums: bool = False) -> dict[str, LogitsManifest]:
    """Checks that the attached arrays of a spec belong to a cache; no row is read.

    Args:
      cache: Manifest of the cache.
      spec: Features that the objective reads.
      checksums: Whether to read every file and compare its checksum too.

    Returns:
      Directory -> manifest of the teacher logits.

    Raises:
      UserError: teacher logits are missing or incomplete, or belong to another cache, feature spec or teacher, or have
        another k, dtype or number of positions.
    """
    found = {}
    for directory in dict.fromkeys(attached.directory for attached in spec.attached):
        own = directory_of(directory, cache)
        manifest = found[directory] = LogitsManifest.read(own)
        where = f"the {KIND} {own}"
        if manifest.settings["cache"] != cache.fingerprint:
            raise UserError(
                f"{where} belong to the rows of the cache {manifest.settings['cache']}, not of "
                f"{cache.settings['task']}, split {cache.settings['split']}, {cache.fingerprint}. Give the CACHE_DIR "
                f"that they were written for, or write them again with `t5x_like {COMMAND}`."
            )
        if manifest.settings["spec"] != spec.digest:
            raise UserError(
                f"{where} were computed from other features ({manifest.settings['spec']}) than the objective of this "
                f"run reads ({spec.digest}), such as another BOS or other weights. Use the objective of the teacher."
            )
        _check_arrays(where, manifest, [attached for attached in spec.attached if attached.directory == directory])
        manifests.check_files(own, manifest.shards, checksums=checksums, kind=KIND, command=COMMAND)
    return found


def _check_arrays(where: str, manifest: LogitsManifest, arrays: Sequence[Attached]) -> None:
    for array in arrays:
        if array.origin != manifest.settings["teacher"]["digest"]:
            raise UserError(
                f"{where} were computed by the teacher {manifest.settings['teacher']['digest']}, not by "
                f"{array.origin}. Write them again with `t5x_like {COMMAND}` and the TEACHER of this run."
            )
        prediction, kind = _prediction_and_kind(array)
        if prediction not in manifest.predictions:
            raise UserError(
                f"{where} have no prediction {prediction!r}; they have {', '.join(map(repr, manifest.predictions))}. "
                f"Write it with `t5x_like {COMMAND}`."
            )
        stored = manifest.predictions[prediction]
        found = (stored.positions, stored.width_of(kind), stored.dtype_of(kind))
        if found != (array.positions, array.width, array.dtype):
            raise UserError(
                f"{where}: {array.name} has {_shape(*found)}, but this run reads "
                f"{_shape(array.positions, array.width, array.dtype)}. Write them again with `t5x_like {COMMAND}`."
            )


def _prediction_and_kind(array: Attached) -> tuple[str, str]:
    _, _, *prediction, kind = array.name.split("/")
    return "/".join(prediction), kind


def _shape(positions: int, width: int | None, dtype: str) -> str:
    return f"{positions} positions" + (f", k={width}" if width is not None else "") + f" and dtype {dtype}"


class LogitsReader:
    """Reads the attached arrays of rows of a cache by their numbers.

    Args:
      cache: Manifest of the cache.
      spec: Features that the objective reads.
      found: Result of `check`.

    Attributes:
      identity: Part of the position in the data: the fingerprints of the teacher logits, if there are any.
    """

    def __init__(self, cache: Manifest, spec: FeatureSpec, found: Mapping[str, LogitsManifest]):
        self._found = found
        self._shards = {
            directory: Shards(directory_of(directory, cache), manifest.shards, kind=KIND, command=COMMAND)
            for directory, manifest in self._found.items()
        }
        self._attached = spec.attached
        fingerprints = [manifest.fingerprint for manifest in self._found.values()]
        self.identity = {PREFIX: fingerprints} if fingerprints else {}

    def __call__(self, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns attached array -> values of the rows with these numbers."""
        arrays = {
            directory: decode(manifest.predictions, self._shards[directory].read(rows))
            for directory, manifest in self._found.items()
        }
        return {
            attached.name: arrays[attached.directory][prediction][kind]
            for attached in self._attached
            for prediction, kind in [_prediction_and_kind(attached)]
        }
