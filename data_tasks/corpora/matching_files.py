"""Files that a pattern matches, with their sizes and a hash that identifies them."""

import functools
import hashlib
import json
from collections.abc import Sequence

import fsspec

from data_tasks.corpora.formats import format_of
from t5x_like.errors import UserError
from t5x_like.stores import StoreNotSupported

# Local files of at most this size together are identified by their contents, others by their names and sizes.
_HASHED_BYTES = 64 << 20
CONTENTS = "contents"
# Files of a data set that `datasets` of Hugging Face has saved, `Dataset.save_to_disk` and `DatasetDict.save_to_disk`.
_STATE, _SPLITS = "state.json", "dataset_dict.json"


def files(pattern: str, setting: str = "") -> list[fsspec.core.OpenFile]:
    """Returns the files that a pattern matches, sorted by path.

    Args:
      pattern: a path that may contain *, ** and ?, local or in a bucket, or the directory of a saved data set.
      setting: the setting that gives the pattern, for messages.

    Returns:
      Files to open, whose formats are known and can be read.

    Raises:
      UserError: the pattern matches no file, the format of a file is not known, or its package is not installed.
    """
    if not isinstance(pattern, str):
        raise UserError(f"{pattern!r:.80} is not a path. Give one that may contain *, ** and ?, such as 'books/*.txt'.")
    try:
        filesystem, path = fsspec.url_to_fs(pattern)
    except (ImportError, ValueError) as error:  # a missing package, or an unknown scheme
        raise StoreNotSupported(f"{pattern} cannot be opened: {error}. Give a local path or gs://….") from error
    if not filesystem.exists(path):
        paths = _matches(filesystem, path)
    elif filesystem.isdir(path):
        paths = _saved_data_set(filesystem, path)
    else:
        paths = [path]  # not a pattern, also if it contains brackets
    if not paths:
        given = f"{setting}={pattern!r}" if setting else f"pattern {pattern!r}"
        raise UserError(
            f"{given}: no file matches {filesystem.unstrip_protocol(path)}. Give an existing file, or a pattern such "
            "as 'books/*.txt'."
        )
    for known in {format_of(found) for found in paths}:
        known.check_installed()
    return [fsspec.core.OpenFile(filesystem, found, "rb") for found in paths]


def path_of(file: fsspec.core.OpenFile) -> str:
    """Returns the local path or the URL of a file."""
    return file.full_name.removeprefix("file://").removeprefix("local://")


def describe(chosen: Sequence[fsspec.core.OpenFile]) -> str:
    """Returns number, size and a hash of files: of their contents if they are small, otherwise of names and sizes."""
    sizes = _sizes(chosen)
    digest, hashed = _digest_of(chosen, sizes)
    number = "1 file" if len(chosen) == 1 else f"{len(chosen):,} files"
    return f"{number}, {sum(sizes) / 1e6:,.2f} MB, hash {'' if hashed == CONTENTS else f'of {hashed} '}{digest}"


def digest_of(chosen: Sequence[fsspec.core.OpenFile]) -> tuple[str, str]:
    """Returns a hash that identifies files, and what it is computed from: `contents`, or `names and sizes`."""
    return _digest_of(chosen, _sizes(chosen))


def _digest_of(chosen: Sequence[fsspec.core.OpenFile], sizes: Sequence[int]) -> tuple[str, str]:
    local = all(isinstance(file.fs, fsspec.implementations.local.LocalFileSystem) for file in chosen)
    if local and sum(sizes) <= _HASHED_BYTES:
        found = [_content_hash(file.path, file.fs.modified(file.path).isoformat()) for file in chosen]
        return _digest(found), CONTENTS
    names = [f"{file.path.rpartition('/')[2]} {size}" for file, size in zip(chosen, sizes, strict=True)]
    return _digest(names), "names and sizes"


def _sizes(chosen: Sequence[fsspec.core.OpenFile]) -> list[int]:
    return [file.fs.size(file.path) or 0 for file in chosen]


def _matches(filesystem: fsspec.AbstractFileSystem, pattern: str) -> list[str]:
    """Returns the files that a pattern matches, sorted, without directories and links to them."""
    found = filesystem.glob(pattern, detail=True)
    # The type in fsspec is that of the link, not of what it leads to.
    links = {path for path, about in found.items() if about.get("islink")}
    if broken := sorted(path for path in links if not filesystem.exists(path)):
        raise UserError(f"{broken[0]}: a link to a file that does not exist. Remove the link, or restore the file.")
    directories = {path for path in links if filesystem.isdir(path)}
    return sorted(path for path in found.keys() - directories if found[path]["type"] != "directory")


def _saved_data_set(filesystem: fsspec.AbstractFileSystem, path: str) -> list[str]:
    """Returns the files of a data set that was saved to a directory."""
    if filesystem.exists(f"{path}/{_STATE}"):
        state = json.loads(filesystem.cat_file(f"{path}/{_STATE}"))
        return [f"{path}/{file['filename']}" for file in state["_data_files"]]
    if filesystem.exists(f"{path}/{_SPLITS}"):
        splits = json.loads(filesystem.cat_file(f"{path}/{_SPLITS}"))["splits"]
        raise UserError(
            f"{path} has the splits {', '.join(splits)}. Give the directories of two of them, such as "
            f"--gin.DATA_FILES={path}/{splits[0]} --gin.VALIDATION_FILES={path}/{splits[-1]}."
        )
    raise UserError(
        f"{path} is a directory, but not of a saved data set: {_STATE} not found. Give a pattern, such as "
        f"{path}/*.parquet."
    )


@functools.lru_cache(maxsize=10_000)
def _content_hash(path: str, modified: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _digest(lines: Sequence[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()
