"""Opens local files for writing, but not through symbolic links.

The directory of a run may belong to somebody else, who could plant a link from `log.txt` to a file of the user.
"""

import io
import os

# Flags of a file that is changed: a link is an error, and child processes do not inherit the descriptor.
_OWN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def open_own(path: str | os.PathLike, flags: int) -> io.FileIO:
    """Opens a local file to change it, unbuffered; not through a symbolic link, which may lead to any file.

    Args:
      path: the file.
      flags: flags of `os.open`.

    Raises:
      OSError: the file is a symbolic link, or cannot be opened.
    """
    mode = "r+b" if flags & os.O_RDWR else "ab" if flags & os.O_APPEND else "wb"
    return open(path, mode, buffering=0, opener=lambda name, _: os.open(name, flags | _OWN, 0o666))


def write(file: io.FileIO, data: bytes) -> None:
    """Writes all bytes; a write to a filling disk may be partial."""
    while data:
        data = data[file.write(data) :]
