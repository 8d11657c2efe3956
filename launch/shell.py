"""Runs commands of this machine, or prints them in a dry run.

Requires Python 3.10 and only its standard library.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys

TIMEOUT_SECONDS = 300.0


class CommandFailed(RuntimeError):
    """A command failed. The message contains its error output."""


class Shell:
    """Runs commands, or prints them in a form that can be pasted into a shell.

    Args:
      dry_run: Print commands instead of running them.
    """

    def __init__(self, dry_run: bool):
        self.dry_run = dry_run

    def run(
        self, *words: str, capture: bool = False, check: bool = True, timeout: float | None = TIMEOUT_SECONDS
    ) -> subprocess.CompletedProcess:
        """Runs a command.

        Args:
          words: The command and its arguments.
          capture: Return the output instead of passing it through.
          check: Raise an error if the command fails.
          timeout: Seconds after which the command and its child processes are killed, which counts as a failure; None
            for a copy that takes as long as it takes.

        Returns:
          The completed process; its output is empty in a dry run.

        Raises:
          CommandFailed: The command failed or does not exist.
        """
        if self.dry_run:
            print(shlex.join(words), flush=True)
            return subprocess.CompletedProcess(words, 0, "", "")
        result = self._run(words, subprocess.PIPE if capture else None, timeout)
        if check and result.returncode:
            output = f": {(result.stderr or result.stdout or '').strip()}" if capture else ""
            raise CommandFailed(f"`{shlex.join(words[:6])} …` failed with exit code {result.returncode}{output}")
        return result

    @staticmethod
    def _run(words: tuple[str, ...], pipe: int | None, timeout: float | None) -> subprocess.CompletedProcess:
        try:
            # In its own process group, because gcloud is a shell script that starts Python.
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
            )
        except FileNotFoundError:
            raise CommandFailed(f"{words[0]} not found. Install it, or add it to PATH.") from None
        try:
            output, error = process.communicate(timeout=timeout)
        except BaseException as failure:  # Ctrl-C, too, does not reach another process group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            output, error = process.communicate()
            if not isinstance(failure, subprocess.TimeoutExpired):
                raise
            error = f"{error or ''}timed out after {timeout:g} s"
        return subprocess.CompletedProcess(words, process.returncode, output, error)

    def log(self, text: str) -> None:
        """Logs a message. In a dry run it is printed as a comment between the commands."""
        if self.dry_run:
            print(f"# {text}", flush=True)
        else:
            print(f"tpu.py: {text}", file=sys.stderr, flush=True)
