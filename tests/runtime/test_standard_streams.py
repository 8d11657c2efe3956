"""Closed standard streams are replaced by the null device, so that a command runs without them."""

import os
import pathlib
import subprocess
import sys

import pytest

from t5x_like.runtime import protocol

pytestmark = pytest.mark.notf

PROGRAM = """
import os, sys
from t5x_like.runtime import standard_streams
standard_streams.open_missing()
with open(sys.argv[1], "w") as file:
    assert file.fileno() > 2
    for descriptor in (1, 2):
        os.write(descriptor, b"native")
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        print("text", file=stream, flush=True)
    assert sys.stdin.read() == ""
    file.write("complete")
child = [sys.executable, "-c", "import os; os.write(1, b'x'); os.write(2, b'x')"]
os.execv(sys.executable, child)
"""


@pytest.mark.skipif(not pathlib.Path(os.devnull).is_char_device(), reason="the null device is a file on this machine")
@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-", ">&- 2>&-", "0<&- >&- 2>&-"])
def test_closed_streams_are_replaced_by_the_null_device(tmp_path, closed):
    command = f'"{sys.executable}" -c "$PROGRAM" "{tmp_path}/file" {closed}'
    environment = os.environ | {"PROGRAM": PROGRAM, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["sh", "-c", command], env=environment, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "complete"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_command_with_closed_streams_succeeds(tmp_path, closed):
    command = f'"{sys.executable}" -m t5x_like train --help {closed}'
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["sh", "-c", command], env=environment, stdin=subprocess.DEVNULL, cwd=tmp_path, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_leaves_ends_the_command_without_a_traceback(tmp_path, unbuffered):
    command = f'(sleep 0.2; "{sys.executable}" -m t5x_like --help; echo $? > code) | true'
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["sh", "-c", command], env=environment, cwd=tmp_path, capture_output=True, check=False)
    assert (done.stderr, (tmp_path / "code").read_text()) == (b"", f"{protocol.CLOSED_PIPE}\n")
