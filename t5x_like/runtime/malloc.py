"""Memory allocation on CPU: settings that glibc reads when a process starts."""

import os
import pathlib
import platform
import sys

VARIABLE = "GLIBC_TUNABLES"
_HUGE_PAGES = {"glibc.malloc.hugetlb": "1"}
# Allocations of up to 256 MiB come from one heap, which keeps up to 512 MiB of free memory, so that the kernel does not
# clear their pages again in each step. Larger ones, such as all temporaries of a program, are returned to the kernel.
# By default, the limit is at most 32 MiB, and each thread has heaps of 64 MiB that are returned when they are empty.
_ONE_HEAP = {
    "glibc.malloc.arena_max": "1",
    "glibc.malloc.mmap_threshold": str(256 * 2**20),
    "glibc.malloc.trim_threshold": str(512 * 2**20),
}
# Measured with 2 CPUs. All threads share the lock of a heap, so larger hosts, such as TPU VMs, keep glibc's default.
_MAX_CPUS_OF_ONE_HEAP = 8
_MODE = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
_FIRST_VERSION = (2, 35)  # of glibc with `hugetlb`


def restart_with_tunables() -> None:
    """Restarts this process once, with `execv`, with glibc's settings for large arrays.

    XLA on CPU allocates gigabytes of temporary arrays in every step. The kernel clears their pages, and with pages of
    4 KiB the first access to each is a page fault: a million of them in a step of T5 1.1 small with 8 rows.

    The settings are huge pages, where the kernel offers them on request, and a heap that keeps memory, on hosts with at
    most 8 CPUs. Returns without effect with another C library, and if the environment variable `GLIBC_TUNABLES` has one
    of the settings already. `GLIBC_TUNABLES=glibc.malloc.hugetlb=0` therefore disables all of them.
    """
    given = os.environ.get(VARIABLE, "")
    if any(name in given for name in _HUGE_PAGES | _ONE_HEAP) or not _glibc_has_tunables():
        return
    settings = _HUGE_PAGES if _huge_pages_are_on_request() else {}
    if _num_cpus() <= _MAX_CPUS_OF_ONE_HEAP:
        settings = settings | _ONE_HEAP
    if not settings:
        return
    os.environ[VARIABLE] = ":".join(filter(None, (given, *(f"{name}={value}" for name, value in settings.items()))))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _huge_pages_are_on_request() -> bool:
    """Returns whether the kernel uses huge pages only for memory of which a program asks it to."""
    try:
        return "[madvise]" in _MODE.read_text()
    except OSError:
        return False


def _glibc_has_tunables() -> bool:
    library, version = platform.libc_ver()
    return library == "glibc" and tuple(map(int, version.split(".")[:2])) >= _FIRST_VERSION


def _num_cpus() -> int:
    """Returns the number of CPUs that this process may use, on Linux."""
    return len(os.sched_getaffinity(0))
