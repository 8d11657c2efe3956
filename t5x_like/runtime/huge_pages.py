"""Huge pages for large arrays on CPU: glibc reads the setting when a process starts."""

import os
import pathlib
import platform
import sys

VARIABLE = "GLIBC_TUNABLES"
_TUNABLE = "glibc.malloc.hugetlb"
_MODE = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
_FIRST_VERSION = (2, 35)  # of glibc with this tunable


def restart_with_huge_pages() -> None:
    """Executes this program again, in the same process, with huge pages for large allocations.

    XLA on CPU reallocates the temporary arrays in every step, gigabytes. With pages of 4 KiB, the first access to each
    is a page fault: a million of them in a step of T5 1.1 small with 8 rows.

    Returns without effect where the kernel does not offer huge pages on request, with another C library, and if the
    environment variable `GLIBC_TUNABLES` has the setting already. `GLIBC_TUNABLES=glibc.malloc.hugetlb=0` therefore
    disables them.
    """
    tunables = os.environ.get(VARIABLE, "")
    if _TUNABLE in tunables or not _are_on_request() or not _glibc_has_tunable():
        return
    os.environ[VARIABLE] = ":".join(filter(None, (tunables, f"{_TUNABLE}=1")))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _are_on_request() -> bool:
    """Returns whether the kernel uses huge pages only for memory of which a program asks it to."""
    try:
        return "[madvise]" in _MODE.read_text()
    except OSError:
        return False


def _glibc_has_tunable() -> bool:
    library, version = platform.libc_ver()
    return library == "glibc" and tuple(map(int, version.split(".")[:2])) >= _FIRST_VERSION
