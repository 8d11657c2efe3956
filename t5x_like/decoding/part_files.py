"""Writes a large output file in parts, so that an interrupted command can resume."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec

from t5x_like import paths
from t5x_like.errors import UserError


class PartFiles:
    """An output that is written atomically in parts (`OUTPUT.parts/000000.jsonl` etc.), which are joined at the end.

    Args:
      output_path: The output file, local or in a bucket.
      fingerprint: Description of the command, to detect unfinished output of another one.
    """

    def __init__(self, output_path: str, fingerprint: str):
        self._filesystem, self._path = fsspec.core.url_to_fs(output_path)
        self._directory = f"{self._path}.parts"
        with paths.explain_path_errors("OUTPUT_PATH", output_path):
            self._filesystem.makedirs(self._directory, exist_ok=True)
        stamp = f"{self._directory}/command"
        if not self._filesystem.exists(stamp):
            self._write(stamp, fingerprint)
        elif (stored := self._filesystem.cat_file(stamp).decode()) != fingerprint:
            raise UserError(
                f"{self._directory}: contains the unfinished output of another command ({stored}). This command is: "
                f"{fingerprint}. Delete the directory, or give another output_path."
            )

    def _part(self, index: int) -> str:
        return f"{self._directory}/{index:06d}.jsonl"

    def count(self) -> int:
        """Returns the number of complete parts."""
        index = 0
        while self._filesystem.exists(self._part(index)):
            index += 1
        return index

    def write(self, index: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes one part."""
        self._write(self._part(index), "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def _write(self, path: str, text: str) -> None:
        self._filesystem.pipe_file(path + ".writing", text.encode())
        self._filesystem.mv(path + ".writing", path)

    def finish(self) -> None:
        """Joins the parts into the output and removes them."""
        joined = b"".join(self._filesystem.cat_file(self._part(index)) for index in range(self.count()))
        self._write(self._path, joined.decode())
        self._filesystem.rm(self._directory, recursive=True)
