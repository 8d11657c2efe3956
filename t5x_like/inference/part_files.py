"""Writes a large output file in parts, so that an interrupted command can resume."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import fsspec

from t5x_like import paths
from t5x_like.errors import UserError

_WRITING = ".writing"  # suffix of a file that is not complete
_PART = re.compile(r"(\d+)-(\d+)\.jsonl")


def line(row: Mapping[str, Any]) -> str:
    """Returns a row as a line of a .jsonl file."""
    return json.dumps(row, ensure_ascii=False) + "\n"


class PartFiles:
    """An output that is written atomically in parts, which are joined at the end.

    A part has one row per record, from the first one up to but not including the last one:
    `OUTPUT.parts/000000000-000000512.jsonl`. Several processes may write different parts.

    Args:
      output_path: The output file, local or in a bucket.
      render: Returns the text of a row.
      header: Text before the first row.

    Attributes:
      directory: The directory of the parts.
    """

    def __init__(self, output_path: str, *, render: Callable[[Any], str] = line, header: str = ""):
        if paths.is_device(output_path):
            raise UserError(
                f"OUTPUT_PATH={output_path}: a device or a pipe, but the output is written in parts, so that the "
                "command can resume. Give the path of a file."
            )
        self._filesystem, self._path = fsspec.core.url_to_fs(output_path)
        self._url, self.directory = output_path, f"{output_path}.parts"
        self._render, self._header = render, header
        self._directory = f"{self._path}.parts"

    def open(self, fingerprint: str) -> None:
        """Creates the directory, or checks that its parts belong to this command.

        Args:
          fingerprint: Description of the command, to detect unfinished output of another one.

        Raises:
          UserError: The directory is not writable, or has the output of another command.
          RunFailed: The storage is full or cannot be written.
        """
        with paths.explain_path_errors("OUTPUT_PATH", self._url), self._explained():
            self._filesystem.makedirs(self._directory, exist_ok=True)
        stamp = f"{self._directory}/command"
        if not self._filesystem.exists(stamp):
            self._write(stamp, fingerprint)
        elif (stored := self._filesystem.cat_file(stamp).decode()) != fingerprint:
            raise UserError(
                f"{self._directory}: contains the unfinished output of another command ({stored}). This command is: "
                f"{fingerprint}. Delete the directory, or give another OUTPUT_PATH."
            )

    def missing(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns the incomplete ranges of records, and removes their complete parts.

        Args:
          ranges: The first and the last record, exclusive, of each range. A part is in one of them.
        """
        parts, missing = self._parts(), []
        for start, stop in ranges:
            inside = [part for part in parts if start <= part[0] and part[1] <= stop]
            if sum(last - first for first, last in inside) < stop - start:
                missing.append((start, stop))
                for part in inside:
                    self._filesystem.rm_file(self._part(*part))
        return missing

    def _part(self, start: int, stop: int) -> str:
        return f"{self._directory}/{start:09d}-{stop:09d}.jsonl"

    def _parts(self) -> list[tuple[int, int]]:
        names = (path.rpartition("/")[2] for path in self._filesystem.ls(self._directory, detail=False, refresh=True))
        return sorted(tuple(map(int, found.groups())) for name in names if (found := _PART.fullmatch(name)))

    def write(self, start: int, rows: Sequence[Any]) -> None:
        """Writes the rows of the records from `start` on as a part.

        Raises:
          RunFailed: The storage is full or cannot be written.
        """
        if rows:
            self._write(self._part(start, start + len(rows)), "".join(map(self._render, rows)))

    def _write(self, path: str, text: str) -> None:
        with self._explained(path):
            self._filesystem.pipe_file(path + _WRITING, text.encode())
            self._filesystem.mv(path + _WRITING, path)

    def finish(self) -> None:
        """Joins the parts into the output and removes them.

        Raises:
          RunFailed: The storage is full or cannot be written.
        """
        with self._explained(self._path):
            with self._filesystem.open(self._path + _WRITING, "wb") as joined:
                joined.write(self._header.encode())
                for part in self._parts():
                    joined.write(self._filesystem.cat_file(self._part(*part)))
            self._filesystem.mv(self._path + _WRITING, self._path)
        self._filesystem.rm(self._directory, recursive=True)

    @contextlib.contextmanager
    def _explained(self, path: str | None = None) -> Iterator[None]:
        """Explains errors of storage, and deletes the incomplete file of `path`, which would use the last space."""
        advice = "Free space or repair the storage, then repeat the command, which resumes after the complete parts."
        try:
            with paths.explain_storage_errors("OUTPUT_PATH", self._url, advice):
                yield
        except BaseException:
            if path is not None:
                with contextlib.suppress(OSError):
                    self._filesystem.rm_file(path + _WRITING)
            raise
