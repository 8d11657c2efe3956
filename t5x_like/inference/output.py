"""Where `infer` writes its rows: a file in parts, or standard output."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from t5x_like import paths
from t5x_like.inference.part_files import line

Range = tuple[int, int]


class Output(Protocol):
    """An output of rows in the order of the records, such as `decoding.part_files.PartFiles`."""

    def open(self, fingerprint: str) -> None:
        """Prepares the output of the command that `fingerprint` describes."""

    def missing(self, ranges: Sequence[Range]) -> list[Range]:
        """Returns the ranges of records, from the first one up to but not including the last, without rows."""

    def write(self, start: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes the rows of the records from `start` on."""

    def finish(self) -> None:
        """Completes the output."""


class StandardOutput:
    """Writes each row to standard output as soon as all earlier ones are known."""

    def open(self, fingerprint: str) -> None:
        """Does nothing."""

    def missing(self, ranges: Sequence[Range]) -> list[Range]:
        """Returns all ranges: nothing can be resumed."""
        return list(ranges)

    def write(self, start: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes rows and flushes each one, so that a reader of a pipe gets whole lines."""
        with paths.explain_storage_errors("OUTPUT_PATH", "-"):
            for row in rows:
                sys.stdout.write(line(row))
                sys.stdout.flush()

    def finish(self) -> None:
        """Does nothing."""
