"""Finds and reads the files of analyses."""

import json
from collections.abc import Iterator
from typing import Any

from t5x_like import paths
from t5x_like.data.records import decode, read_bytes
from t5x_like.errors import UserError


def files_of(setting: str, path: str, suffix: str) -> list[str]:
    """Returns a file, or the files in a directory, in the order of their names.

    Args:
      setting: The setting that has the path, for messages.
      path: A file of any name, or a directory.
      suffix: End of the names of the files in a directory.

    Raises:
      UserError: There is no such file.
    """
    with paths.explain_path_errors(setting, path):
        if paths.is_file(path):
            return [path]
        found = [paths.join(path, name) for name in paths.listdir(path) if name.endswith(suffix)]
    if not found:
        problem = f"no {suffix} files in this directory" if paths.exists(path) else "not found"
        raise UserError(f"{setting}={path}: {problem}. Give a file, or a directory with {suffix} files.")
    return found


def json_lines(setting: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects of .jsonl files, each with its file and line.

    Args:
      setting: The setting that has the path, for messages.
      path: A file, or a directory with .jsonl files.

    Raises:
      UserError: A file is not found, or a line is not a JSON object.
    """
    for file in files_of(setting, path, ".jsonl"):
        for number, line in enumerate(decode(file, read_bytes(file)).split("\n"), 1):
            if not line.strip():
                continue
            where = f"{file}:{number}"
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{where}: not JSON: {error}. Correct the line.") from None
            if not isinstance(value, dict):
                raise UserError(f"{where}: {value!r:.60} is not a JSON object. Correct the line.")
            yield where, value


def text_field(where: str, value: dict[str, Any], name: str) -> str:
    """Returns a field of a JSON object that is text.

    Raises:
      UserError: The field is missing, empty or not text.
    """
    found = value.get(name)
    if not isinstance(found, str) or not found.strip():
        fields = ", ".join(map(str, value))
        problem = "empty" if isinstance(found, str) else f"{found!r:.40}, not text"
        raise UserError(f"{where}: field {name!r} is {problem}. Fields: {fields}. Correct the line.")
    return found
