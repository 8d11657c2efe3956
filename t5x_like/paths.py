"""File operations on local paths and on URLs that fsspec opens, such as `gs://…`, or `memory://…` in tests.

Writes are atomic: a concurrent reader, or a run that is killed during a write, sees the old or the new contents. The
module does not need TensorFlow.

Local files are opened by the standard library, which alone can make a write durable; stores by `t5x_like.stores`.
"""

import contextlib
import errno
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence

from t5x_like import own_files, stores
from t5x_like.errors import RunFailed, UserError

# Directory of devices, and the part of it that is for files.
_DEVICES, _MEMORY = "/dev", "/dev/shm"
# Error messages of storage that cannot be written; libraries include them in messages of their own.
_UNWRITABLE = {
    os.strerror(number): number for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)
}


def is_local(path: str | os.PathLike) -> bool:
    """Returns whether `path` is local. Local file systems can append to files and rename them; stores cannot."""
    text = os.fspath(path)
    return "://" not in text or text.startswith("file://")


def local(path: str | os.PathLike) -> pathlib.Path:
    """Converts a local path or `file://` URL to `pathlib.Path` and expands `~`."""
    return pathlib.Path(os.fspath(path).removeprefix("file://")).expanduser()


def join(path: str | os.PathLike, *parts: str) -> str:
    """Joins `path`, a local path or URL, with further components."""
    if is_local(path):
        return str(local(path).joinpath(*parts))
    return "/".join([os.fspath(path).rstrip("/"), *parts])


def is_name(value: object) -> bool:
    """Returns whether a value, such as one of a manifest, names an entry of the directory that it is joined to."""
    return isinstance(value, str) and value not in ("", ".", "..") and not set(value) & set("/\\\0")


def is_inside(value: object) -> bool:
    """Returns whether a value is a relative path that stays in the directory that it is joined to; see `is_name`."""
    return isinstance(value, str) and all(map(is_name, value.split("/")))


def leaves(path: str | os.PathLike, directory: str | os.PathLike) -> bool:
    """Returns whether a local path leads, through a symbolic link, out of a local directory."""
    root = os.path.realpath(local(directory))
    return os.path.commonpath((os.path.realpath(local(path)), root)) != root


def exists(path: str | os.PathLike) -> bool:
    """Returns whether `path` is an existing file or directory."""
    if is_local(path):
        return os.path.exists(local(path))
    return stores.entry_type(path) is not None


def is_file(path: str | os.PathLike) -> bool:
    """Returns whether `path` is an existing file."""
    if is_local(path):
        return os.path.isfile(local(path))
    return stores.entry_type(path) == "file"


def listdir(path: str | os.PathLike) -> list[str]:
    """Returns the sorted names in a directory; empty if `path` is not an existing directory."""
    if is_local(path):
        directory = local(path)
        return sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    if stores.entry_type(path) != "directory":
        return []
    filesystem, inner = stores.open_store(path)
    return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in filesystem.ls(inner, detail=False))


def find_with_prefix(directory: str, names: Sequence[str]) -> list[str] | None:
    """Returns the files of a directory with some names, or with the same prefix before all of them.

    Args:
      directory: The directory.
      names: Names such as `weights.hdf5`, which `small_weights.hdf5` is with the prefix `small_`.

    Returns:
      The files in the order of `names`; None if no prefix has all of them.

    Raises:
      UserError: Several prefixes have all of them.
    """
    files, first = set(listdir(directory)), names[0]
    prefixes = {file.removesuffix(first) for file in files if f"_{file}".endswith(f"_{first}")}
    found = sorted(prefix for prefix in prefixes if files.issuperset(prefix + name for name in names))
    if len(found) > 1 and found[0]:
        given = ", ".join(prefix + first for prefix in found)
        raise UserError(f"{directory}: {given} belong to several models. Give a directory with one of them.")
    return [found[0] + name for name in names] if found else None


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a file.

    Raises:
      FileNotFoundError: The file does not exist.
    """
    if is_local(path):
        return local(path).read_bytes()
    filesystem, inner = stores.open_store(path)
    return filesystem.cat_file(inner)


def read_text(path: str | os.PathLike) -> str:
    """Returns the contents of a UTF-8 file, with Unix line ends.

    Raises:
      FileNotFoundError: The file does not exist.
      UserError: The file is not valid UTF-8. The message names file and line.
    """
    data = read_bytes(path)
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{os.fspath(path)}, line {line}: not valid UTF-8 (byte {data[error.start]:#04x}). Restore the file from a "
            "copy, or correct the line."
        ) from error


def is_device(path: str | os.PathLike) -> bool:
    """Whether a path is a device, a pipe, or a link of /dev, such as /dev/stdout, which may lead to a file."""
    if not is_local(path):
        return False
    target = local(path)
    is_standard_stream = target.is_file() and target.is_relative_to(_DEVICES) and not target.is_relative_to(_MEMORY)
    return is_standard_stream or target.exists() and not target.is_file() and not target.is_dir()


def write_atomic(path: str | os.PathLike, contents: str | bytes) -> None:
    """Replaces a file atomically and durably. Creates its directory if needed.

    A device or a pipe is written to instead, because root can replace it by a file.
    """
    data = contents.encode("utf-8") if isinstance(contents, str) else contents
    if not is_local(path):
        filesystem, inner = stores.open_store(path)
        filesystem.makedirs(inner.rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(inner, data)  # a store replaces an object as a whole
        return
    target = local(path)
    if is_device(path):
        with open(target, "ab") as device:
            device.write(data)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")  # a fixed name, so that killed runs leave at most one
    try:
        with own_files.open_own(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            own_files.write(file, data)
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError:  # on a full disk, the partial file would use the last space
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def create(path: str | os.PathLike, contents: str) -> bool:
    """Creates a file. If several callers try at the same time, one succeeds.

    In a store without atomic creation only the existence is checked, so two callers may succeed.

    Returns:
      Whether the file was created; False if it already exists.
    """
    data = contents.encode("utf-8")
    if not is_local(path):
        filesystem, inner = stores.open_store(path)
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
        os.link(temporary, target)  # the file appears with its contents, unlike with `open(…, "x")`
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
    """Replaces a small file, in place if the disk is full.

    Overwriting a local file in place is not atomic, but needs no space unless the file grows by a block.

    Raises:
      OSError: The file does not exist yet and cannot be created, or cannot be written either way.
    """
    try:
        write_atomic(path, contents)
    except OSError:
        if not is_local(path) or not is_file(path):
            raise
        with own_files.open_own(local(path), os.O_RDWR) as file:
            own_files.write(file, contents.encode())
            file.truncate()
            os.fsync(file.fileno())


def remove(path: str | os.PathLike) -> None:
    """Deletes a file if it exists."""
    if is_local(path):
        local(path).unlink(missing_ok=True)
    elif exists(path):
        filesystem, inner = stores.open_store(path)
        filesystem.rm_file(inner)


@contextlib.contextmanager
def explain_path_errors(setting: str, path: str | os.PathLike) -> Iterator[None]:
    """Converts errors on opening a path to user errors. Use it where a path given by the user is first opened.

    Errors of a store or a network are not converted, because a retry may succeed.

    Args:
      setting: Name of the setting, such as `INPUT_PATH`.
      path: Its value.

    Raises:
      UserError: The path does not exist, is of the wrong kind, or access is denied.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        reason = (error.strerror or str(error) or type(error).__name__).lower()
        at = f" ({error.filename})" if error.filename and str(error.filename) != os.fspath(path) else ""
        raise UserError(f"{setting}={os.fspath(path)}: {reason}{at}. Check the path and its permissions.") from error


def unwritable_reason(error: Exception) -> str | None:
    """Returns why storage cannot be written, such as that it is full, if the message of an error says so."""
    return next((reason for reason in _UNWRITABLE if reason in str(error)), None)


@contextlib.contextmanager
def explain_storage_errors(setting: str, path: str | os.PathLike, advice: str = "") -> Iterator[None]:
    """Converts errors about storage that is full or cannot be written to `RunFailed`. Use it where outputs are written.

    Args:
      setting: Name of the setting, such as `MODEL_DIR`.
      path: Its value.
      advice: What is intact, and what to do. By default, to repeat the command.

    Raises:
      RunFailed: Instead of an error of the operating system or of a library that writes files.
    """
    try:
        yield
    except (UserError, RunFailed):
        raise
    except Exception as error:
        # A library's message may be long and end with the reason, so only the reason is shown.
        reason = unwritable_reason(error)
        if reason is None and getattr(error, "errno", None) not in _UNWRITABLE.values():
            raise
        advice = advice or "Free space or repair the storage, then repeat the command."
        raise RunFailed(f"{setting}={os.fspath(path)} cannot be written: {reason or error}. {advice}") from error


def write_output(setting: str, path: str | os.PathLike, contents: str | bytes) -> None:
    """Replaces an output file of a command atomically, and names its setting in errors.

    Args:
      setting: Name of the setting, such as `OUTPUT_PATH`.
      path: Its value.
      contents: The contents of the file.

    Raises:
      UserError: The path is of the wrong kind, or access is denied.
      RunFailed: The storage is full or cannot be written.
    """
    with explain_path_errors(setting, path), explain_storage_errors(setting, path):
        write_atomic(path, contents)


def remove_directory(directory: str | os.PathLike) -> None:
    """Deletes a directory with its contents if it exists."""
    if is_local(directory):
        shutil.rmtree(local(directory), ignore_errors=True)
    elif exists(directory):
        filesystem, inner = stores.open_store(directory)
        filesystem.rm(inner, recursive=True)


def check_writable(setting: str, directory: str | os.PathLike) -> None:
    """Checks that a local directory can be created or written to. Creates nothing, and does not check URLs.

    Args:
      setting: Name of the setting, such as `MODEL_DIR`.
      directory: Its value. The directory and its parents need not exist.

    Raises:
      UserError: A parent is a file or not writable, or the file system does not support the name.
    """
    if not is_local(directory):
        return
    try:
        os.lstat(local(directory))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # the nearest existing parent is checked below
    except (OSError, ValueError) as error:  # the name is too long or has a null byte
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{setting}={os.fspath(directory)}: {reason.lower()}. Give another path.") from error
    existing = local(directory).absolute()
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise UserError(f"{setting}={os.fspath(directory)}: {existing} is not a directory. Give another path.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{setting}={os.fspath(directory)}: {existing} is not writable. Give another path.")


def check_new_directory(setting: str, directory: str | os.PathLike, *, overwrite: bool) -> None:
    """Checks that a directory to write to is writable, and empty unless it may be overwritten.

    Args:
      setting: Name of the setting, such as `OUTPUT_PATH`.
      directory: Its value.
      overwrite: Whether the directory may have entries.

    Raises:
      UserError: It is not.
    """
    check_writable(setting, directory)
    names = listdir(directory) if exists(directory) else []
    if names and not overwrite:
        raise UserError(
            f"{setting}={os.fspath(directory)}: not empty ({', '.join(names[:3])}). Give another directory, or "
            "--overwrite."
        )


def check_output_file(setting: str, path: str | os.PathLike, *, overwrite: bool = True) -> None:
    """Checks that a file can be written. Creates nothing; of a URL, only `overwrite` is checked.

    Args:
      setting: Name of the setting, such as `OUTPUT_PATH`.
      path: Its value.
      overwrite: Whether an existing file may be replaced. A device always exists, and is not replaced.

    Raises:
      UserError: The path is a directory or not writable, or the file exists and may not be replaced.
    """
    if is_local(path) and os.path.isdir(local(path)):
        raise UserError(f"{setting}={os.fspath(path)}: is a directory. Give the path of a file.")
    if not overwrite and exists(path) and not is_device(path):
        raise UserError(f"{setting}={os.fspath(path)}: exists. Give --overwrite to replace it, or another path.")
    if not exists(path):
        check_writable(setting, path)


def sync_directory(directory: pathlib.Path) -> None:
    """Makes the names in a local directory durable, on systems that support it."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
