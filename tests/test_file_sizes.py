"""A file of the library fits in one reading, and a call of a function on a few lines."""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.notf

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 400
# A function that needs more settings takes a struct.
MOST_PARAMETERS = 15
# Files that are still longer. They may not grow; remove a file here once it is shorter.
LONGER = {
    "t5x_like/data/seqio_feed/source.py": 412,
    "t5x_like/models/bert.py": 416,
}


FILES = {
    file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
    for package in ("t5x_like", "data_tasks")
    for file in (ROOT / package).rglob("*.py")
}


def test_files_have_at_most_400_lines():
    lines = {name: len(text.splitlines()) for name, text in FILES.items()}
    assert len(lines) > 400, "too few files found"
    longer = {name: number for name, number in lines.items() if number > MOST_LINES}
    grown = {name: number for name, number in longer.items() if number > LONGER.get(name, MOST_LINES)}
    assert not grown, "divide these files"
    assert longer.keys() == LONGER.keys(), "remove files that are short now"


def num_parameters(function):
    """Returns the number of parameters of the syntax tree of a function, without `self` and `cls`."""
    given = function.args
    names = [
        each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if each
    ]
    return len([name for name in names if name not in ("self", "cls")])


def test_functions_have_at_most_15_parameters():
    wide = [
        f"{name}:{node.lineno}: {num_parameters(node)}"
        for name, text in FILES.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and num_parameters(node) > MOST_PARAMETERS
    ]
    assert wide == [], "let these functions take structs"


def test_parameters_are_counted():
    counted = ast.parse("def f(self, a, /, b, *c, d=1, **e): ...").body[0]
    assert num_parameters(counted) == 5
