"""The budget of the default tests in CPU seconds: `.ci/cpu_seconds.py` reads what tests/conftest.py notes."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CASE = (
    '<testcase classname="tests.{0}" name="test_a[bert-1]"><properties><property name="cpu" value="{1}"/></properties>'
    "</testcase>"
)


@pytest.fixture
def check(monkeypatch, capsys):
    """Returns `check(report, budget)` on a machine that takes twice as long as the one of the budget."""
    specification = importlib.util.spec_from_file_location("cpu_seconds", ROOT / ".ci/cpu_seconds.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "calibrate", lambda: 2 * module.REFERENCE_SECONDS)
    return lambda *words: (module.main(*words), capsys.readouterr().out)


def test_tests_above_their_budget_fail(check, tmp_path):
    cases = [CASE.format(f"test_{number}", number) for number in range(12)] + [CASE.format("test_11", 14.0)]
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    code, output = check(str(tmp_path / "report.xml"), "30")
    assert code == 0 and output.startswith("80 CPU seconds of tests")
    assert "\n      25  tests.test_11\n" in output and "tests.test_2\n" in output and "tests.test_1\n" not in output
    assert "families: bert 80\n" in output
    code, output = check(str(tmp_path / "report.xml"), "29")
    assert code == 1 and "80 CPU seconds, more than a third above their budget of 58" in output


def test_reports_without_cpu_seconds_fail(check, tmp_path):
    (tmp_path / "report.xml").write_text(
        '<testsuites><testsuite><testcase classname="a" name="b"/></testsuite></testsuites>'
    )
    code, output = check(str(tmp_path / "report.xml"), "60")
    assert code == 1 and "no CPU seconds found" in output


@pytest.mark.full
def test_reports_have_the_cpu_seconds_of_tests(tmp_path):
    words = ["tests/test_markers.py", "-q", "-n", "1", "-k", "missing_extras", f"--junitxml={tmp_path}/report.xml"]
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, check=True)
    assert len(re.findall(r'<property name="cpu" value="[\d.]+"', (tmp_path / "report.xml").read_text())) == 4
