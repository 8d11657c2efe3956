"""Log lines of runs made from Python: shown as a command shows them, and only where nobody else has a say."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.notf

CODE = """
import logging
from absl import logging as absl_logging
from t5x_like.runtime import console_log
{before}
with console_log.enabled():
    absl_logging.info("inside")
assert logging.getLogger().handlers == {handlers}, logging.getLogger().handlers
absl_logging.info("outside")
"""


def said(before="", handlers="[]"):
    code = CODE.format(before=before, handlers=handlers)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stderr


def test_log_format_matches_commands_and_is_restored():
    (line,) = said().splitlines()
    assert line.endswith(" I inside") and line[2] == line[5] == ":"


def test_default_absl_handler_does_not_count_as_configuration():
    before = "absl_logging.info('nobody sees this'); handlers = list(logging.getLogger().handlers); assert handlers"
    (line,) = said(before, "handlers").splitlines()
    assert line.endswith(" I inside")


def test_an_application_that_has_configured_logging_keeps_it():
    before = "logging.basicConfig(level='WARNING', format='%(message)s'); handlers = list(logging.getLogger().handlers)"
    assert said(before, "handlers") == ""


def test_under_a_command_nothing_is_shown_twice():
    assert (
        said("from t5x_like.cli import startup; startup.log('info')", "logging.getLogger().handlers").count("inside")
        == 1
    )
