"""The restart of a program with settings of glibc's memory allocation."""

import os
import subprocess
import sys

import pytest

from t5x_like.runtime import malloc

PROGRAM = """
import os
from t5x_like.runtime import malloc
print("started")
malloc.restart_with_tunables()
print(os.environ.get("GLIBC_TUNABLES"))
"""
ONE_HEAP = ":".join(f"{name}={value}" for name, value in malloc._ONE_HEAP.items())


def run(given):
    """Returns the lines that a program with these tunables prints; None for an unset variable."""
    environment = {name: value for name, value in os.environ.items() if name != malloc.VARIABLE}
    environment |= {} if given is None else {malloc.VARIABLE: given}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


class Restarted(Exception):
    """Raised in place of the new program."""


@pytest.fixture
def host(monkeypatch, tmp_path):
    """Returns a function that sets the kernel's mode of huge pages and the number of CPUs."""

    def set_host(mode, cpus):
        if mode is not None:
            (tmp_path / "enabled").write_text(mode)
        monkeypatch.setattr(malloc, "_MODE", tmp_path / "enabled")
        monkeypatch.setattr(malloc, "_num_cpus", lambda: cpus)
        monkeypatch.setattr(malloc, "_glibc_has_tunables", lambda: True)

    def restarted(*_):
        raise Restarted

    monkeypatch.setattr(os, "execv", restarted)
    monkeypatch.setenv(malloc.VARIABLE, "")
    return set_host


@pytest.mark.skipif(not malloc._glibc_has_tunables(), reason="needs glibc 2.35")
@pytest.mark.parametrize("given", [None, "glibc.malloc.tcache_count=7"])
def test_program_restarts_once(given):
    *starts, tunables = run(given)
    huge_pages = ["glibc.malloc.hugetlb=1"] if malloc._huge_pages_are_on_request() else []
    one_heap = [ONE_HEAP] if malloc._num_cpus() <= malloc._MAX_CPUS_OF_ONE_HEAP else []
    added = huge_pages + one_heap
    assert starts == (["started", "started"] if added else ["started"])
    assert tunables == (":".join([*([given] if given else []), *added]) or "None")


def test_program_with_a_given_setting_does_not_restart():
    assert run("glibc.malloc.hugetlb=0") == ["started", "glibc.malloc.hugetlb=0"]


@pytest.mark.parametrize(
    ("mode", "cpus", "expected"),
    [
        ("always [madvise] never\n", 8, f"glibc.malloc.hugetlb=1:{ONE_HEAP}"),
        ("always [madvise] never\n", 9, "glibc.malloc.hugetlb=1"),
        ("[always] madvise never\n", 2, ONE_HEAP),
        ("always madvise [never]\n", 2, ONE_HEAP),
        (None, 2, ONE_HEAP),
    ],
)
def test_settings_depend_on_kernel_and_cpus(host, mode, cpus, expected):
    host(mode, cpus)
    with pytest.raises(Restarted):
        malloc.restart_with_tunables()
    assert os.environ[malloc.VARIABLE] == expected
    malloc.restart_with_tunables()  # the new program keeps them


@pytest.mark.parametrize("given", ["glibc.malloc.hugetlb=0", "glibc.malloc.arena_max=4"])
def test_given_settings_are_kept(host, monkeypatch, given):
    host("always [madvise] never\n", 2)
    monkeypatch.setenv(malloc.VARIABLE, given)
    malloc.restart_with_tunables()
    assert os.environ[malloc.VARIABLE] == given


@pytest.mark.parametrize("mode", ["[always] madvise never\n", "always madvise [never]\n", None])
def test_program_does_not_restart_on_large_hosts_without_huge_pages_on_request(host, mode):
    host(mode, 96)
    malloc.restart_with_tunables()
