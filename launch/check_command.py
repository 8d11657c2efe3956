#!/usr/bin/env python3
"""Checks a t5x_like command on this machine before other machines are requested.

    check_command.py t5x_like train --gin_file=… --gin.MODEL_DIR=gs://my-bucket/runs/first

The check runs the command with --dry_run=elsewhere. It exits with code 2 if the command is invalid, for example because
of a misspelled flag, gin file or task, missing data, or a batch that the devices do not divide. What cannot be checked
on this machine, such as a bucket without access, is printed, and the exit code is 0. The check needs t5x_like in $VENV
(default: .venv of this checkout). Without it, or if the check itself fails, the command is reported as not checked.

    check_command.py --devices=16 t5x_like train …      the number of devices of the command, over all machines

Requires Python 3.10 and only its standard library.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from jobs import COMMANDS, DRY_RUN_COMMANDS
from protocol import NOT_CHECKED, USER_ERROR
from slices import LaunchError

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 300
# The beginning of the lines about checks that were not possible; `cli/checklist.py` prints them.
_UNCHECKED = "not checked: "


def check_command(command: list[str], devices: int | None = None) -> str:
    """Runs a command with --dry_run=elsewhere.

    Args:
      command: The command to check, such as `t5x_like train --gin_file=…`.
      devices: Number of devices of the command, over all machines; None if it is not known.

    Returns:
      The result of the check: one line, and one for each check that was not possible here.

    Raises:
      LaunchError: The command is invalid. The error contains t5x_like's message.
    """
    program = Path(os.environ.get("VENV") or ROOT / ".venv") / "bin" / "t5x_like"
    if command[1:2] == [] or command[1] in set(COMMANDS) - set(DRY_RUN_COMMANDS):
        return "command not checked: it does not support --dry_run"
    if not program.exists():
        return f"command not checked: {program} not found (install t5x_like in that environment, or set VENV)"
    arguments, words = [], iter(command[1:])
    for word in words:
        if word == "--max_restarts":
            next(words, None)  # its value
        elif not word.startswith("--max_restarts="):
            arguments.append(word)
    arguments.append("--dry_run=elsewhere")
    if devices and not any(word.partition("=")[0] == "--cpu_devices" for word in arguments):
        arguments.append(f"--cpu_devices={devices}")
    try:
        result = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"command not checked: the dry run did not finish within {TIMEOUT_SECONDS} s"
    if result.returncode == USER_ERROR:
        raise LaunchError(f"invalid t5x_like command: {result.stderr.strip()}")
    if result.returncode == 0:
        return "command checked by a dry run"
    if result.returncode == NOT_CHECKED:
        lines = [line for line in result.stdout.splitlines() if line.startswith(_UNCHECKED)]
        return "\n".join([f"command checked by a dry run, except for {len(lines)} checks:", *lines])
    last_line = (result.stderr.strip().splitlines() or ["no message"])[-1]
    return f"command not checked: {last_line}"


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--devices", type=int, help="number of devices of the command, over all machines")
    parser.add_argument("program", metavar="t5x_like", choices=["t5x_like"], help="the program, always t5x_like")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the t5x_like command and its flags")
    return parser


def main(argv: list[str]) -> int:
    """Runs the check and returns the exit code."""
    options = make_parser().parse_args(argv)
    try:
        print(check_command([options.program, *options.arguments], options.devices), file=sys.stderr)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
