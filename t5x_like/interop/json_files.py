"""Reads JSON of Hugging Face models: config.json, generation_config.json, indices and safetensors headers."""

import json
import math
from collections import Counter
from typing import Any

import fsspec

from t5x_like.errors import UserError


def read(path: str) -> dict[str, Any]:
    """Reads the JSON object in a file.

    Args:
      path: local path or URL.

    Raises:
      UserError: the file does not exist, or is not a valid JSON object (see `parse`).
    """
    try:
        with fsspec.open(path, "rb") as stream:
            contents = stream.read()
    except FileNotFoundError:
        raise UserError(f"{path}: file not found") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, not a file") from None
    return parse(contents, path)


def parse(contents: bytes, path: str) -> dict[str, Any]:
    """Parses a JSON object.

    NaN, Infinity and duplicate keys are errors, unlike in `json.loads`, because other parsers interpret them
    differently.

    Args:
      contents: UTF-8 without a byte-order mark.
      path: path of the file, for messages.

    Raises:
      UserError: the contents are not a valid JSON object; the message is one line that names the file.
    """
    try:
        found = json.loads(
            contents.decode("utf-8"),
            parse_constant=_reject_constant,
            parse_float=_finite,
            object_pairs_hook=_reject_duplicates,
        )
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply to be a configuration") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not valid JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: must be a JSON object, not a {type(found).__name__}")
    return found


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(f"{digits[:80]} is too large for a number")
    return value


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        duplicate = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"key {duplicate[:80]!r} appears more than once")
    return found
