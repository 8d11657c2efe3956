"""Stores: URLs that fsspec opens, such as `gs://…`, or `memory://…` in tests.

`etils.epath`, which Orbax uses for the directory of a checkpoint, cannot replace fsspec here: it opens `gs://` with
TensorFlow if TensorFlow is installed, raises an error for `memory://` and other schemes, reuses cached listings, so
that a process does not see the new files of another one, and cannot create a file exclusively, as the lock of a run
needs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from t5x_like.errors import MachineError, RunFailed

if TYPE_CHECKING:
    import fsspec


class StoreUnreachable(RunFailed, OSError):
    """A store that cannot be read. A retry may succeed."""


class StoreNotSupported(MachineError, ImportError):
    """A URL for which fsspec has no package."""


def entry_type(path: str | os.PathLike) -> str | None:
    """Returns the type of an entry of a store, `file` or `directory`, or None if it does not exist.

    fsspec's `isfile` and `isdir` also return False if the store cannot be read. A run that resumes would then find no
    checkpoints and begin again.

    Args:
      path: A URL.

    Raises:
      StoreUnreachable: The store cannot be read.
    """
    filesystem, inner = open_store(path)
    try:
        return filesystem.info(inner)["type"]
    except FileNotFoundError:
        return None
    except Exception as error:  # stores raise errors of their own
        raise StoreUnreachable(
            f"{os.fspath(path)} cannot be read: {str(error) or type(error).__name__}. Check the network and your "
            "access. For gs://, log in with `gcloud auth application-default login`."
        ) from error


def open_store(path: str | os.PathLike) -> tuple[fsspec.AbstractFileSystem, str]:
    """Opens a store, without listings from before.

    Returns:
      The store, and the path within it.

    Raises:
      StoreNotSupported: No package opens such URLs.
    """
    import fsspec  # imported only for URLs, because the import takes 0.1 s

    try:
        filesystem, inner = fsspec.core.url_to_fs(os.fspath(path))
    except (ImportError, ValueError) as error:  # a missing package, or an unknown scheme
        raise StoreNotSupported(f"{os.fspath(path)} cannot be opened: {error}. Give a local path or gs://….") from error
    filesystem.invalidate_cache()
    return filesystem, inner
