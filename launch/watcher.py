"""Which of several `launch/tpu.py train` watches a job: one at a time, by name.

DIRECTORY/watcher.json has the name of the watcher and a count that it raises at each poll. Each write names the
generation that it replaces, so a watcher notices at its next poll that another one has taken over, and ends before it
changes anything.

Requires Python 3.10, and google-cloud-storage to read and write objects.
"""

import json
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

from cloud import Changed
from job import InvalidValue, parse
from shell import CommandFailed
from slices import LaunchError

FIELDS = {"name": str, "count": int, "poll_seconds": int | float}
MAX_POLL_SECONDS = 300.0
MISSED_POLLS = 5  # after so many, a watcher counts as ended


class TakenOver(CommandFailed):
    """Another watcher has taken over."""


class Watcher:
    """The claim of this process to watch a job.

    Args:
      bucket: Reads and writes objects.
      directory: The directory of the job, gs://….
      poll_seconds: Seconds between two calls of `refresh`.
      sleep: Waits.
      log: Logs.

    Attributes:
      name: Name of this watcher.
    """

    def __init__(
        self,
        bucket: Any,
        directory: str,
        poll_seconds: float,
        sleep: Callable[[float], None],
        log: Callable[[str], None],
    ):
        self._bucket, self._path = bucket, f"{directory}/watcher.json"
        self._poll_seconds, self._sleep, self._log = poll_seconds, sleep, log
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._generation, self._count = None, 0

    def claim(self, take_over: str | None) -> None:
        """Claims the job, after the last watcher has ended.

        Args:
          take_over: Name of a watcher that need not have ended.

        Raises:
          LaunchError: Another watcher is active.
        """
        found, generation = self._read()
        if found and found["name"] != take_over:
            poll_seconds = found["poll_seconds"]
            seconds = MISSED_POLLS * (poll_seconds if 0 < poll_seconds <= MAX_POLL_SECONDS else MAX_POLL_SECONDS)
            self._log(f"{found['name']} has watched this job: waiting {seconds:g} s for a sign of it")
            self._sleep(seconds)
            latest, now = self._read()
            if latest and now != generation:
                raise LaunchError(
                    f"{latest['name']} watches this job. End it with Ctrl-C there, or add --take_over={latest['name']}"
                )
            generation = now
        try:
            self._write(generation)
        except Changed:
            raise LaunchError("another watcher has started at the same time. Repeat the command.") from None

    def refresh(self) -> None:
        """Shows that this watcher is active.

        Raises:
          TakenOver: Another watcher has taken over.
          CommandFailed: The bucket cannot be written; the claim is then unchanged.
        """
        try:
            self._write(self._generation)
        except Changed:
            found = self._read()[0]
            other = found["name"] if found else "another watcher, which has ended,"
            raise TakenOver(f"{other} has taken over. This watcher ends; the job continues.") from None

    def release(self) -> None:
        """Ends the claim, if it still exists."""
        if self._generation is not None:
            self._count = -1
            self._write(self._generation)

    def _read(self) -> tuple[dict | None, int]:
        """Returns the claim, None if there is none or it has ended, and the generation of its object."""
        found = self._bucket.read(self._path)
        if found is None:
            return None, 0
        try:
            claim = parse(self._path, found.data, FIELDS)
        except InvalidValue as error:
            self._log(f"{error} It counts as no watcher.")
            return None, found.generation
        return (claim if claim["count"] >= 0 else None), found.generation

    def _write(self, replaces: int) -> None:
        claim = {"name": self.name, "count": self._count, "poll_seconds": self._poll_seconds}
        self._generation = self._bucket.write(self._path, (json.dumps(claim) + "\n").encode(), replaces)
        self._count += 1
