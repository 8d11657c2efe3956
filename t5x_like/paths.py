"""Files by path or URL: local paths, `gs://…`, and whatever else fsspec opens (`memory://…` in tests).

The few operations that a run folder needs, the same for both kinds. Writing is atomic: a reader, or a run killed in the
middle, sees the old contents or the new ones. Nothing here needs TensorFlow.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator

from t5x_like.errors import UserError

# Orbax looks for files by patterns that start with the whole path, and takes a backslash for a separator.
_PATTERN_CHARACTERS = "*?[\\"


def is_local(path: str | os.PathLike) -> bool:
    """Whether `path` is on a file system that can append and rename."""
    text = os.fspath(path)
    return "://" not in text or text.startswith("file://")


def local(path: str | os.PathLike) -> pathlib.Path:
    """A local path as `pathlib.Path`, with `~` expanded."""
    return pathlib.Path(os.fspath(path).removeprefix("file://")).expanduser()


def join(path: str | os.PathLike, *parts: str) -> str:
    """`path` with `parts` below it."""
    if is_local(path):
        return str(local(path).joinpath(*parts))
    return "/".join([os.fspath(path).rstrip("/"), *parts])


def exists(path: str | os.PathLike) -> bool:
    """Whether there is a file or folder."""
    if is_local(path):
        return os.path.exists(local(path))
    filesystem, inner = _open_store(path)
    return filesystem.exists(inner)


def is_file(path: str | os.PathLike) -> bool:
    """Whether there is a file."""
    if is_local(path):
        return os.path.isfile(local(path))
    filesystem, inner = _open_store(path)
    return filesystem.isfile(inner)


def listdir(path: str | os.PathLike) -> list[str]:
    """The names in a folder, sorted; none where it does not exist."""
    if is_local(path):
        folder = local(path)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    filesystem, inner = _open_store(path)
    if not filesystem.isdir(inner):
        return []
    return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in filesystem.ls(inner, detail=False))


def read_text(path: str | os.PathLike) -> str:
    """The contents of a UTF-8 file.

    Raises:
      FileNotFoundError: there is none.
      UserError: it is not UTF-8, naming file and line.
    """
    if is_local(path):
        data = local(path).read_bytes()
    else:
        filesystem, inner = _open_store(path)
        data = filesystem.cat_file(inner)
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{os.fspath(path)}, line {line}: not valid UTF-8 (byte {data[error.start]:#04x}). Restore the file from a "
            "copy, or correct the line"
        ) from error


def write_atomic(path: str | os.PathLike, contents: str | bytes) -> None:
    """Replaces a file as a whole and durably, making its folder where needed."""
    data = contents.encode("utf-8") if isinstance(contents, str) else contents
    if not is_local(path):
        filesystem, inner = _open_store(path)
        filesystem.makedirs(inner.rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(inner, data)  # an object appears in its store as a whole
        return
    target = local(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")  # one name: a run killed here leaves nothing that piles up
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError:  # for example a full disk, of which the partial file would use the last space
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def create(path: str | os.PathLike, contents: str) -> bool:
    """Creates a file; if several callers try at once, one succeeds.

    In a store without atomic creation, existence is checked first, so two callers may succeed.

    Returns:
      Whether the file was created; False if it already exists.
    """
    data = contents.encode("utf-8")
    if not is_local(path):
        filesystem, inner = _open_store(path)
        if filesystem.exists(inner):
            return False
        filesystem.makedirs(inner.rpartition("/")[0], exist_ok=True)
        try:
            filesystem.pipe_file(inner, data, mode="create")
        except FileExistsError:
            return False
        return True
    target = local(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    write_atomic(temporary, data)
    try:
        os.link(temporary, target)  # appears with its contents, as `open(…, "x")` does not
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        try:
            with open(target, "xb", buffering=0) as file:
                file.write(data)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def write_despite_full_disk(path: str | os.PathLike, contents: str) -> None:
    """Replaces a small file, in place if the disk has no space for a new file.

    Overwriting a local file in place is not atomic, but needs no space unless the file grows by a block.

    Raises:
      OSError: the file does not exist yet and cannot be created, or cannot be written either way.
    """
    try:
        write_atomic(path, contents)
    except OSError:
        if not is_local(path) or not is_file(path):
            raise
        with open(local(path), "r+b", buffering=0) as file:
            file.write(contents.encode())
            file.truncate()
            os.fsync(file.fileno())


def remove(path: str | os.PathLike) -> None:
    """Deletes a file, where it exists."""
    if is_local(path):
        local(path).unlink(missing_ok=True)
    elif exists(path):
        filesystem, inner = _open_store(path)
        filesystem.rm_file(inner)


@contextlib.contextmanager
def explain_path_errors(setting: str, path: str | os.PathLike) -> Iterator[None]:
    """Converts errors on opening a path into user errors. Use it where the user's path is first opened.

    Errors of a store or a network are not converted, because a retry may succeed.

    Args:
      setting: what the user set, such as `INPUT_PATH`.
      path: its value.

    Raises:
      UserError: the path does not exist, is of the wrong kind, or access is denied.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        reason = (error.strerror or str(error) or type(error).__name__).lower()
        at = f" ({error.filename})" if error.filename and str(error.filename) != os.fspath(path) else ""
        raise UserError(f"{setting}={os.fspath(path)}: {reason}{at}. Check the path and its permissions") from error


def check_writable(setting: str, folder: str | os.PathLike) -> None:
    """Checks that a local directory can be created or written to. Creates nothing, and does not check URLs.

    Args:
      setting: what the user set, such as `MODEL_DIR`.
      folder: its value; the directory or its parents need not exist.

    Raises:
      UserError: a parent is a file or not writable, or the file system does not support the name.
    """
    if not is_local(folder):
        return
    try:
        os.lstat(local(folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # explained below, by the nearest parent that exists
    except (OSError, ValueError) as error:  # a name that is too long, or has a null byte
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{setting}={os.fspath(folder)}: {reason.lower()}. Give another path") from error
    existing = local(folder).absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise UserError(f"{setting}={os.fspath(folder)}: {existing} is not a directory. Give another path")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{setting}={os.fspath(folder)}: {existing} is not writable. Give another path")


def check_checkpoint_directory(setting: str, folder: str) -> None:
    """Checks that Orbax can write checkpoints to a directory.

    Args:
      setting: what the user set, such as `MODEL_DIR`.
      folder: its value, local or a URL.

    Raises:
      UserError: the path is not valid UTF-8, or contains pattern characters.
    """
    path = str(local(folder).absolute()) if is_local(folder) else folder
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UserError(f"{setting}={folder!a}: the path is not valid UTF-8. Rename it") from None
    if found := [character for character in _PATTERN_CHARACTERS if character in path]:
        raise UserError(
            f"{setting}={folder}: checkpoints cannot be written to a path that contains {' or '.join(found)}. "
            "Rename it, or give another path"
        )


def sync_directory(folder: pathlib.Path) -> None:
    """Makes the names in a local folder durable, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_store(path):
    import fsspec  # only where a store is named: importing it takes a tenth of a second

    filesystem, inner = fsspec.core.url_to_fs(os.fspath(path))
    filesystem.invalidate_cache()
    return filesystem, inner
