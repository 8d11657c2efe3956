"""Which paths can hold checkpoints."""

import os
import sys

from t5x_like import paths
from t5x_like.errors import UserError

# Orbax interprets the whole path as a glob pattern, and a backslash in it as a separator.
_PATTERN_CHARACTERS = "*?[\\"


def check_checkpoint_directory(setting: str, directory: str) -> None:
    """Checks that Orbax can write checkpoints to a directory.

    Args:
      setting: name of the setting, such as `MODEL_DIR`.
      directory: its value, a local path or URL.

    Raises:
      UserError: the path is not valid UTF-8, contains pattern characters, or differs in the encoding of the locale.
    """
    path = str(paths.local(directory).absolute()) if paths.is_local(directory) else directory
    try:
        os.fsencode(path).decode()
    except UnicodeError:
        raise UserError(f"{setting}={directory!a}: the path is not valid UTF-8. Rename it.") from None
    # Orbax encodes paths as UTF-8, and Python in the encoding of the locale.
    if not path.isascii() and sys.getfilesystemencoding().lower().replace("-", "") != "utf8":
        raise UserError(
            f"{setting}={directory!a}: the locale has the encoding {sys.getfilesystemencoding()}, in which Orbax does "
            "not find this path. Set PYTHONUTF8=1, or a locale such as LC_ALL=C.UTF-8."
        )
    if found := [character for character in _PATTERN_CHARACTERS if character in path]:
        raise UserError(
            f"{setting}={directory}: checkpoints cannot be written to a path that contains {' or '.join(found)}. "
            "Rename it, or give another path."
        )


def is_teacher_logits(path: str) -> bool:
    """Returns whether a directory has teacher logits, `TASK/SPLIT/manifest.json`; see `data.cached.logits`."""
    return any(
        paths.is_file(paths.join(path, task, split, "manifest.json"))
        for task in paths.listdir(path)
        for split in paths.listdir(paths.join(path, task))
    )
