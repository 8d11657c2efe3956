"""The files of byte pair encoding: pieces with their ids, and merges in the order learned."""

import fsspec

from t5x_like.errors import UserError
from t5x_like.vocabularies import tokenizer_json

# The names that transformers gives the two files of a vocabulary, and the file that holds both.
VOCAB_FILE, MERGES_FILE, TOKENIZER_FILE = "vocab.json", "merges.txt", "tokenizer.json"


def read_ids(path: str) -> dict[str, int]:
    """Returns the id of each piece.

    Args:
      path: path of a `vocab.json`, or of a `tokenizer.json`.

    Raises:
      UserError: the file does not exist or is not valid.
    """
    contents = _read(path)
    if path.endswith(TOKENIZER_FILE):
        return dict(tokenizer_json.pieces(contents))
    tokenizer_json.check_ids(path, contents)
    return contents


def read_merges(path: str) -> list[list[str]]:
    """Returns the two pieces of each merge, in the order learned.

    Args:
      path: path of a `merges.txt`, or of a `tokenizer.json`.

    Raises:
      UserError: the file does not exist or is not valid.
    """
    if path.endswith(TOKENIZER_FILE):
        merges = _read(path).get("model", {}).get("merges") or []
        return [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    lines = [line for line in read_text(path).split("\n") if line and not line.startswith("#version")]
    if len(lines) > tokenizer_json.MAX_MERGES:
        raise UserError(
            f"{path!r}: {len(lines):,} merges are more than {tokenizer_json.MAX_MERGES:,}, twice the largest "
            "public tokenizer's. Use another tokenizer."
        )
    return [line.split(" ") for line in lines]


def read_text(path: str) -> str:
    """Returns the contents of a UTF-8 file, local or in a bucket.

    Raises:
      UserError: the file does not exist.
    """
    try:
        with fsspec.open(path, "rb") as file:
            return file.read().decode("utf-8")
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path!r} is not a file of a BPE vocabulary: file not found") from error


def _read(path: str) -> dict:
    try:
        return tokenizer_json.read(path)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise UserError(f"{path!r} is not a file of a BPE vocabulary: file not found") from error
