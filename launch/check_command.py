#!/usr/bin/env python3
"""Runs a t5x_like command with --dry_run on this machine before other machines are requested.

    check_command.py t5x_like train --gin_file=… --gin.MODEL_DIR=gs://my-bucket/runs/first

Exits with 2 if the command is invalid: a misspelled flag or gin file, or an unknown task. Needs t5x_like in $VENV
(default: .venv of this checkout); without it, or if the check itself fails, the command is reported as not checked.

Plain Python 3.10 and its standard library.
"""

import os
import subprocess
import sys
from pathlib import Path

from protocol import USER_ERROR
from slices import LaunchError

ROOT = Path(__file__).resolve().parent.parent
NO_DRY_RUN = ("inspect", "vocabulary", "convert", "plan")
SECONDS = 180


def check_command(command: list[str]) -> str:
    """Runs a command with --dry_run.

    Args:
      command: the command to check, such as `t5x_like train --gin_file=…`.

    Returns:
      The result of the check as one line.

    Raises:
      LaunchError: the command is invalid; contains t5x_like's message.
    """
    program = Path(os.environ.get("VENV") or ROOT / ".venv") / "bin" / "t5x_like"
    if command[1:2] == [] or command[1] in NO_DRY_RUN:
        return "command not checked: it does not support --dry_run"
    if not program.exists():
        return f"command not checked: {program} not found (pip install -e . there, or set VENV)"
    words = [word for word in command[1:] if not word.startswith("--max_restarts")]
    try:
        done = subprocess.run([program, *words, "--dry_run"], capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"command not checked: no answer within {SECONDS} s"
    if done.returncode == USER_ERROR:
        raise LaunchError(f"invalid t5x_like command: {done.stderr.strip()}")
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return "command checked by a dry run" if done.returncode == 0 else f"command not checked: {last}"


if __name__ == "__main__":
    try:
        print(check_command(sys.argv[1:]), file=sys.stderr)
    except LaunchError as error:
        print(error, file=sys.stderr)
        sys.exit(USER_ERROR)
