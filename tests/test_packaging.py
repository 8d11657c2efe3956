"""What is in the wheel, and what must not be in the tree."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("t5x_like", "data_tasks", "gin_configs")
# Left out when the tree is copied or walked: what tools write, and the environments.
BYPRODUCTS = re.compile(r"__pycache__|\.egg-info$|^build$|^dist$|^runs$|^\.git$|^\.venv|^\.\w+_cache$|^\.ci-")


def files_under(*folders: str) -> list[Path]:
    """Files below folders of the repository, relative to it, without what tools write."""
    found = []
    for folder in folders:
        for where, inner, names in os.walk(ROOT / folder):
            inner[:] = [name for name in inner if not BYPRODUCTS.search(name)]
            found += [Path(where, name).relative_to(ROOT) for name in names]
    return sorted(found)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    # Built from a copy: setuptools leaves a build folder behind and would pack what an older one still holds.
    source, output = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in [*files_under(*PACKAGES), Path("setup.py"), Path("pyproject.toml"), Path("LICENSE")]:
        (source / path.parent).mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", output, source],
        check=True,
    )
    (built,) = output.glob("*.whl")
    return zipfile.ZipFile(built)


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (member,) = [member for member in wheel.namelist() if member.endswith(f".dist-info/{name}")]
    return wheel.read(member).decode()


def test_wheel_holds_three_packages_and_nothing_else(wheel):
    top = {name.split("/")[0] for name in wheel.namelist()}
    (information,) = [name for name in top if name.endswith(".dist-info")]
    assert top - {information} == set(PACKAGES)


def test_wheel_holds_every_file_of_its_packages(wheel):
    """Modules, gin files, vocabularies and lists: one that is missing is noticed by a user, far from here."""
    kept = {".py", ".gin", ".model", ".vocab", ".txt"}
    packed = {Path(name) for name in wheel.namelist() if name.split("/")[0] in PACKAGES}
    files = files_under(*PACKAGES)
    assert {path.suffix for path in files} >= {".py", ".gin"}
    strange = [str(path) for path in files if path.suffix not in kept]
    assert strange == [], "setup.py's package_data names no files of this kind"
    assert packed == set(files)


def test_wheel_declares_its_command_and_its_pythons(wheel):
    assert "t5x_like = t5x_like.cli.main:main" in metadata(wheel, "entry_points.txt")
    declared = metadata(wheel, "METADATA")
    (pythons,) = re.findall(r"^Requires-Python: (.*)$", declared, re.MULTILINE)
    assert set(pythons.split(",")) == {">=3.11", "<3.14"}
    extras = set(re.findall(r"^Provides-Extra: (.*)$", declared, re.MULTILINE))
    assert extras == {"tpu", "cuda", "plan", "cache", "vocabulary", "docs", "test", "parity"}


def assigned(name: str):
    """A literal of setup.py, read without running it."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"setup.py assigns no {name}")


def project_names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", line).group().replace("_", "-").lower() for line in requirements}


def constrained(name: str) -> dict[str, list[str]]:
    """The lines of a constraints file by project name."""
    lines: dict[str, list[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if not line.startswith("#"):
            lines.setdefault(line.split("==")[0], []).append(line)
    return lines


def test_bounds_are_lower_ones_except_the_reference_implementations():
    extras = assigned("EXTRAS")
    lines = [
        *assigned("CORE"),
        *assigned("SEQIO"),
        *(line for name in extras if name != "parity" for line in extras[name]),
    ]
    for line in lines:
        assert re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?>=[\d.]+(; [a-z0-9_<>=.\" ]+)?", line), line


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-notf.txt"])
def test_constraints_are_names_versions_and_markers(name):
    for line in (line for lines in constrained(name).values() for line in lines):
        assert re.fullmatch(r"[a-z0-9.-]+==[0-9][\w.]*( ; [\w<>=!'\". ()]+)?", line), line


def test_every_dependency_is_constrained_with_and_without_tensorflow():
    core, seqio, extras = assigned("CORE"), assigned("SEQIO"), assigned("EXTRAS")
    everything, without = constrained("constraints.txt"), constrained("constraints-notf.txt")
    needed = project_names([*core, *seqio, *(line for lines in extras.values() for line in lines)])
    assert needed - set(everything) == set()
    assert project_names(core) - set(without) == set()
    assert [name for name in without if "tensorflow" in name or name in ("seqio", "tfds-nightly")] == []
    assert {name: lines for name, lines in without.items() if everything[name] != lines} == {}


def test_no_package_index_is_named_anywhere():
    """A checkout must install through whatever index its user has configured."""
    host = re.compile(r"(pypi\.org|pythonhosted|pkg\.dev|index-url|find-links|/" + r"simple/|download\.pytorch)", re.I)
    named = []
    for path in files_under("."):
        assert path.name not in ("uv.lock", "poetry.lock", "Pipfile.lock"), (
            f"{path} is a lock file of one tool and one index"
        )
        if path.suffix not in (".model", ".png") and path != Path("tests/test_packaging.py"):
            named += [f"{path}: {hit}" for hit in host.findall((ROOT / path).read_text(errors="replace"))]
    assert named == []
