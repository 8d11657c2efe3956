"""The contents of the wheel, and the dependencies of the package."""

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import t5x_like

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("t5x_like", "data_tasks", "gin_configs")
# Not copied and not searched: generated files and environments.
BYPRODUCTS = re.compile(r"__pycache__|\.egg-info$|^build$|^dist$|^runs$|^\.git$|^\.venv|^\.\w+_cache$|^\.ci-")


def files_under(*directories: str) -> list[Path]:
    """Returns the relative paths of the files in directories of the repository, without generated files."""
    found = []
    for directory in directories:
        for where, inner, names in os.walk(ROOT / directory):
            inner[:] = [name for name in inner if not BYPRODUCTS.search(name)]
            found += [Path(where, name).relative_to(ROOT) for name in names]
    return sorted(found)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    # Built from a copy, because setuptools leaves a build directory behind and would package its old files.
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


@pytest.mark.full
def test_wheel_contains_only_the_three_packages(wheel):
    top = {name.split("/")[0] for name in wheel.namelist()}
    (information,) = [name for name in top if name.endswith(".dist-info")]
    assert top - {information} == set(PACKAGES)


def test_wheel_contains_every_file_of_its_packages(wheel):
    """Modules, gin files, vocabularies and lists; only users would notice a missing file."""
    kept = {".py", ".gin", ".model", ".vocab", ".txt", ".jsonl"}
    packed = {Path(name) for name in wheel.namelist() if name.split("/")[0] in PACKAGES}
    files = files_under(*PACKAGES)
    assert {path.suffix for path in files} >= {".py", ".gin"}
    strange = [str(path) for path in files if path.suffix not in kept]
    assert strange == [], "setup.py's package_data names no files of this kind"
    assert packed == set(files)


def test_wheel_declares_entry_point_and_python_versions(wheel):
    assert "t5x_like = t5x_like.cli.main:main" in metadata(wheel, "entry_points.txt")
    declared = metadata(wheel, "METADATA")
    (pythons,) = re.findall(r"^Requires-Python: (.*)$", declared, re.MULTILINE)
    assert set(pythons.split(",")) == {">=3.11", "<3.14"}
    extras = set(re.findall(r"^Provides-Extra: (.*)$", declared, re.MULTILINE))
    assert extras == {
        *(
            "tpu",
            "cuda",
            "plan",
            "plan-gpu",
            "cache",
            "chat",
            "dask",
            "corpora",
            "quantization",
            "clean",
            "hdf5",
            "eval",
            "lm-eval",
            "docs",
            "test",
            "parity",
            "wandb",
            "mlflow",
            "launch",
        )
    }


def assigned(name: str):
    """Returns a literal in setup.py, parsed without executing the file."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"setup.py assigns no {name}")


def project_names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", line).group().replace("_", "-").lower() for line in requirements}


def constrained(name: str) -> dict[str, list[str]]:
    """Returns the lines of a constraints file by project name."""
    lines: dict[str, list[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if not line.startswith("#"):
            lines.setdefault(line.split("==")[0], []).append(line)
    return lines


def test_installation_page_lists_every_extra():
    rows = re.findall(
        r"^\| (`.*?`) \|", (ROOT / "launch/README.md").read_text().partition("| extra |")[2], re.MULTILINE
    )
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(rows))) == sorted(assigned("EXTRAS"))


def test_only_reference_implementations_have_exact_versions():
    extras = assigned("EXTRAS")
    lines = [
        *assigned("CORE"),
        *assigned("SEQIO"),
        *(line for name in extras if name != "parity" for line in extras[name]),
    ]
    for line in lines:
        assert re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?>=[\d.]+(; [a-z0-9_<>=.\" ]+)?", line), line


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-notf.txt"])
def test_constraints_have_names_versions_and_markers(name):
    for line in (line for lines in constrained(name).values() for line in lines):
        assert re.fullmatch(r"[a-z0-9.-]+==[0-9][\w.]*( ; [\w<>=!'\". ()]+)?", line), line


def test_every_dependency_has_a_constraint():
    core, seqio, extras = assigned("CORE"), assigned("SEQIO"), assigned("EXTRAS")
    everything, without = constrained("constraints.txt"), constrained("constraints-notf.txt")
    needed = project_names([*core, *seqio, *(line for lines in extras.values() for line in lines)])
    assert needed - set(everything) == set()
    assert project_names(core) - set(without) == set()
    assert [name for name in without if "tensorflow" in name or name in ("seqio", "tfds-nightly")] == []
    # The conditions of a line, such as `sys_platform`, depend on the packages that need it.
    versions = [{name: _versions(lines) for name, lines in each.items()} for each in (everything, without)]
    assert {name: found for name, found in versions[1].items() if not found <= versions[0][name]} == {}


def _versions(lines):
    return {line.partition(";")[0].strip() for line in lines}


def test_tests_install_the_metrics():
    """Pytest fails rather than skips where a package of a metric is missing, so the extra `test` has them all."""
    extras = assigned("EXTRAS")
    assert project_names(extras["eval"]) - project_names(extras["test"]) == set()


def test_no_file_names_a_package_index():
    """A checkout must install from the package index that the user has configured."""
    host = re.compile(r"(pypi\.org|pythonhosted|pkg\.dev|index-url|find-links|/" + r"simple/|download\.pytorch)", re.I)
    named = []
    for path in files_under("."):
        assert path.name not in ("uv.lock", "poetry.lock", "Pipfile.lock"), (
            f"{path} is a lock file of one tool and one index"
        )
        if path.suffix not in (".model", ".png") and path != Path("tests/test_packaging.py"):
            named += [f"{path}: {hit}" for hit in host.findall((ROOT / path).read_text(errors="replace"))]
    assert named == []


def test_newest_version_of_the_changelog_is_the_version_of_the_package():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased, newest = re.findall(r"^## \[(.+?)\](?: - \d{4}-\d\d-\d\d)?$", text, re.MULTILINE)[:2]
    assert (unreleased, newest) == ("Unreleased", t5x_like.__version__)
