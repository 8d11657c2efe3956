"""Runs commands of this machine, or prints them in a dry run.

Requires Python 3.10 and only its standard library.
"""

import concurrent.futures
import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

PARALLEL_CALLS = 16


class CommandFailed(RuntimeError):
    """A command failed. The message contains its error output."""


class Shell:
    """Runs commands, or prints them in a form that can be pasted into a shell.

    Args:
      dry_run: Print commands instead of running them.
    """

    def __init__(self, dry_run: bool):
        self.dry_run = dry_run

    def run(self, *words: str, capture: bool = False, check: bool = True) -> subprocess.CompletedProcess:
        """Runs a command.

        Args:
          words: The command and its arguments.
          capture: Return the output instead of passing it through.
          check: Raise an error if the command fails.

        Returns:
          The completed process; its output is empty in a dry run.

        Raises:
          CommandFailed: The command failed or does not exist.
        """
        if self.dry_run:
            print(shlex.join(words), flush=True)
            return subprocess.CompletedProcess(words, 0, "", "")
        pipe = subprocess.PIPE if capture else None
        try:
            result = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        except FileNotFoundError:
            raise CommandFailed(f"{words[0]} not found. Install it, or add it to PATH.") from None
        if check and result.returncode:
            output = f": {(result.stderr or result.stdout).strip()}" if capture else ""
            raise CommandFailed(f"`{shlex.join(words[:6])} …` failed with exit code {result.returncode}{output}")
        return result

    def run_each(self, commands: list[list[str]], **options) -> list[subprocess.CompletedProcess]:
        """Runs commands in parallel.

        Args:
          commands: The commands and their arguments.
          **options: Options of `run`.

        Returns:
          The completed processes in the order of the commands.

        Raises:
          CommandFailed: A command failed or does not exist. All of them have ended.
        """
        if self.dry_run:
            return [self.run(*words, **options) for words in commands]
        with concurrent.futures.ThreadPoolExecutor(PARALLEL_CALLS) as executor:
            return list(executor.map(lambda words: self.run(*words, **options), commands))

    def run_all(self, commands: list[list[str]], **options) -> subprocess.CompletedProcess:
        """Runs commands in parallel and returns their outputs, joined, and the largest exit code; see `run_each`."""
        results = self.run_each(commands, **options)
        outputs = ["".join(getattr(result, name) or "" for result in results) for name in ("stdout", "stderr")]
        return subprocess.CompletedProcess(commands, max((r.returncode for r in results), default=0), *outputs)

    @contextlib.contextmanager
    def in_background(self, *words: str) -> Iterator[subprocess.Popen | None]:
        """Runs a command whose output is shown while other commands run, and ends it with the context.

        Args:
          words: The command and its arguments.

        Yields:
          The process; None in a dry run.
        """
        if self.dry_run:
            self.run(*words)
            yield None
            return
        # In its own process group, because gcloud starts ssh, which would survive it.
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()

    def log(self, text: str) -> None:
        """Logs a message. In a dry run it is printed as a comment between the commands."""
        if self.dry_run:
            print(f"# {text}", flush=True)
        else:
            print(f"tpu.py: {text}", file=sys.stderr, flush=True)
