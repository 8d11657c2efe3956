"""Runs commands of this machine.

Requires Python 3.10 and only its standard library.
"""

import shlex
import subprocess


class CommandFailed(RuntimeError):
    """A command or a call failed. The message contains the reason."""


def run(words: list[str], dry_run: bool) -> None:
    """Runs a command, or prints it in a form that can be pasted into a shell.

    Args:
      words: The command and its arguments.
      dry_run: Print it instead.

    Raises:
      CommandFailed: The command failed or does not exist.
    """
    if dry_run:
        print(shlex.join(words), flush=True)
        return
    try:
        code = subprocess.run(words, stdin=subprocess.DEVNULL).returncode
    except FileNotFoundError:
        raise CommandFailed(f"{words[0]} not found. Install it, or add it to PATH.") from None
    if code:
        raise CommandFailed(f"`{shlex.join(words[:6])} …` failed with exit code {code}.")
