"""The restart of a program with huge pages."""

import os
import subprocess
import sys

import pytest

from t5x_like.runtime import huge_pages

PROGRAM = """
import os
from t5x_like.runtime import huge_pages
print("started")
huge_pages.restart_with_huge_pages()
print(os.environ.get("GLIBC_TUNABLES"))
"""


def run(**environment):
    environment = {name: value for name, value in os.environ.items() if name != huge_pages.VARIABLE} | environment
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.skipif(
    not (huge_pages._are_on_request() and huge_pages._glibc_has_tunable()), reason="needs huge pages on request"
)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["started", "started", "glibc.malloc.hugetlb=1"]),
        (
            {huge_pages.VARIABLE: "glibc.malloc.tcache_count=7"},
            ["started", "started", "glibc.malloc.tcache_count=7:glibc.malloc.hugetlb=1"],
        ),
        ({huge_pages.VARIABLE: "glibc.malloc.hugetlb=0"}, ["started", "glibc.malloc.hugetlb=0"]),
    ],
)
def test_program_restarts_once_with_huge_pages(given, expected):
    assert run(**given) == expected


@pytest.mark.parametrize("mode", ["[always] madvise never\n", "always madvise [never]\n", None])
def test_program_does_not_restart_where_it_has_no_effect(monkeypatch, tmp_path, mode):
    if mode is not None:
        (tmp_path / "enabled").write_text(mode)
    monkeypatch.delenv(huge_pages.VARIABLE, raising=False)
    monkeypatch.setattr(huge_pages, "_MODE", tmp_path / "enabled")
    monkeypatch.setattr(os, "execv", lambda *arguments: pytest.fail("restarted"))
    huge_pages.restart_with_huge_pages()
