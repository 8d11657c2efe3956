"""Tests that need more than the extra `test` have a marker, by which tests/conftest.py skips and CI selects them."""

import ast
import re
from pathlib import Path

import conftest
import pytest

from t5x_like.cli.commands import COMMANDS

TESTS = Path(__file__).resolve().parent
PACKAGES = {package: marker for marker, (packages, _) in conftest.NEEDED.items() for package in packages}


@pytest.mark.parametrize(
    ("markers", "installed", "expected"),
    [
        ({"parity", "slow"}, {"torch", "transformers"}, None),
        ({"parity"}, {"torch"}, r"transformers not installed: pip install -e '.\[test,parity\]'"),
        ({"beam"}, {"torch"}, r"apache_beam not installed: pip install -e '.\[test,cache\]'"),
        ({"slow"}, set(), None),
    ],
)
def test_tests_of_missing_extras_are_skipped(markers, installed, expected):
    reason = conftest.reason_to_skip(markers, lambda package: package if package in installed else None)
    assert reason is expected is None or re.match(expected, reason)


def test_default_tests_have_each_command_and_family():
    left_out = {path for path in TESTS.rglob("test_*.py") if "mark.full" in _marks_of_file(path)}
    assert left_out
    assert not {f"test_{command}" for command in COMMANDS} & {path.stem for path in left_out}
    assert not any(TESTS / "models" in path.parents for path in left_out)


def _marks_of_file(path):
    """Returns the source of the value of `pytestmark`, which applies to all tests of a file."""
    return " ".join(
        ast.unparse(node.value)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    )


def _imported(node):
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.split(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and not child.level:
            yield child.module.split(".")[0]
        elif isinstance(child, ast.Call) and "importorskip" in (getattr(child.func, key, "") for key in ("attr", "id")):
            yield child.args[0].value.split(".")[0]


def test_tests_that_import_packages_of_other_extras_are_marked():
    """A test that skips itself without a marker would run in no environment of CI."""
    unmarked = []
    for path in TESTS.rglob("test_*.py"):
        marks = _marks_of_file(path)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_"):
                continue  # fixtures and functions that marked tests call
            decorators = " ".join(map(ast.unparse, getattr(node, "decorator_list", [])))
            for marker in {PACKAGES[package] for package in _imported(node) if package in PACKAGES}:
                if f"mark.{marker}" not in f"{marks} {decorators}":
                    unmarked.append(f"{path.relative_to(TESTS)}:{node.lineno} needs the marker {marker}")
    assert not unmarked
