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
    stated = re.search(r"Python (3\.\d+) to (3\.\d+)", (ROOT / "README.md").read_text()).groups()
    assert stated == (f"3.{declared[1]}", f"3.{int(declared[2]) - 1}")


def test_first_commands_of_the_readme_set_up_train_and_test():
    commands = re.findall(r"^    (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == ["git clone URL t5x_like && cd t5x_like", "./launch/local.sh train", "./launch/local.sh test"]
    for command in commands[1:]:
        assert command in SCRIPT
