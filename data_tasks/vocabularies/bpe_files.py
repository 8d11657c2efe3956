"""The files of byte pair encoding: pieces with their ids, and merges in the order learned."""

import json

import fsspec

from t5x_like.errors import UserError

# The names that transformers gives the two files of a vocabulary, and the file that holds both.
VOCAB_FILE, MERGES_FILE, TOKENIZER_FILE = "vocab.json", "merges.txt", "tokenizer.json"


def read_ids(path: str) -> dict[str, int]:
    """Return the id of each piece.

    Args:
      path: path of a `vocab.json`, or of a `tokenizer.json`.

    Raises:
      UserError: the file does not exist or is not valid JSON.
    """
    contents = _read_json(path)
    return contents["model"]["vocab"] if path.endswith(TOKENIZER_FILE) else contents


def read_merges(path: str) -> list[list[str]]:
    """Return the two pieces of each merge, in the order learned.

    Args:
      path: path of a `merges.txt`, or of a `tokenizer.json`.

    Raises:
      UserError: the file does not exist or is not valid JSON.
    """
    if path.endswith(TOKENIZER_FILE):
        merges = _read_json(path)["model"]["merges"]
        return [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    lines = [line for line in read_text(path).split("\n") if line and not line.startswith("#version")]
    return [line.split(" ") for line in lines]


def read_text(path: str) -> str:
    """Return the contents of a UTF-8 file, local or in a bucket.

    Raises:
      UserError: the file does not exist.
    """
    try:
        with fsspec.open(path, "rb") as file:
            return file.read().decode("utf-8")
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path!r} is not a file of a BPE vocabulary: file not found") from error


def _read_json(path: str) -> dict:
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path!r}: not valid JSON ({error}). Restore the file from a copy") from error
