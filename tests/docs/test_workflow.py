"""The GitHub workflow runs every lane of .ci/run, on the Python versions that the package supports."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
SCRIPT = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_lane_is_a_job():
    lanes = re.search(r"\(\(\$#\)\) \|\| lanes=\((.*)\)", SCRIPT)[1].split()
    assert re.findall(r"lane: (\w+),", WORKFLOW) == lanes
    assert set(lanes) == set(re.findall(r"^lane_(\w+)\(\)", SCRIPT, re.MULTILINE))


def test_python_versions_are_supported():
    declared = re.search(r'python_requires=">=3\.(\d+),<3\.(\d+)"', (ROOT / "setup.py").read_text())
    supported = {f"3.{minor}" for minor in range(int(declared[1]), int(declared[2]))}
    assert set(re.findall(r'python: "([\d.]+)"', WORKFLOW)) <= supported
    badge = re.search(r"!\[Python ([\d.| ]+)\]", (ROOT / "README.md").read_text())[1]
    assert set(badge.split(" | ")) == supported


def test_repository_owner_is_a_placeholder():
    named = {name for name in ("README.md", "mkdocs.yml") if "github.com/OWNER/" in (ROOT / name).read_text()}
    assert named == {"README.md", "mkdocs.yml"} and "github.com/OWNER/" in (ROOT / "CONTRIBUTING.md").read_text()
