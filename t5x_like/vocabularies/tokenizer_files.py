"""Finds and copies the tokenizer files of a Hugging Face directory, and vocabularies in a single file."""

from collections.abc import Collection, Mapping

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.vocabularies import tokenizer_classes
from t5x_like.vocabularies.tokenizer_classes import VOCABULARIES

TOKENIZER = tokenizer_classes.FILES
# The files that describe the model. Without tokenizer_config.json, the tokenizer has the type of the model.
MODEL = frozenset({"config.json", "generation_config.json"})
SENTENCEPIECE, WORDPIECE = ".model", ".txt"
# The name in a directory of a WordPiece vocabulary in a single file.
WORDPIECE_FILE = tokenizer_classes.WORDPIECE


class VocabularyNotSet(UserError):
    """A task needs a vocabulary, and VOCABULARY_PATH is not set."""


def find(path: str) -> str | None:
    """Returns what a vocabulary is read from: a directory with tokenizer files, a SentencePiece model or a `vocab.txt`.

    Args:
      path: a directory, or a file.

    Returns:
      `path` itself, or the only SentencePiece model or `vocab.txt` in it if it has no other tokenizer files; None if it
      has neither.
    """
    names = paths.listdir(path)
    if not names:
        return path if path.endswith((SENTENCEPIECE, WORDPIECE)) and paths.is_file(path) else None
    if not any(name in VOCABULARIES or name.endswith(SENTENCEPIECE) for name in names):
        return None
    settings = ("tokenizer_config.json", "tokenizer.json", "config.json")
    if set(settings) & set(names) and set(VOCABULARIES) & set(names):
        return path
    if models := [name for name in names if name.endswith(SENTENCEPIECE)]:
        return paths.join(path, models[0]) if len(models) == 1 else None
    return paths.join(path, WORDPIECE_FILE) if WORDPIECE_FILE in names else path


def is_single_file(names: Collection[str]) -> bool:
    """Returns whether the files of a tokenizer are a SentencePiece model or a `vocab.txt` without settings."""
    return len(names) == 1 and next(iter(names)).endswith((SENTENCEPIECE, WORDPIECE))


def single_name(path: str) -> str:
    """Returns the name that a single file has in a directory: `vocab.txt`, or its own of a SentencePiece model."""
    return WORDPIECE_FILE if path.endswith(WORDPIECE) else path.rpartition("/")[2]


def read(path: str, names: Collection[str] = TOKENIZER | MODEL) -> dict[str, bytes]:
    """Reads the files of a tokenizer, and those that describe its model.

    Args:
      path: a directory, a SentencePiece model, or a file like `vocab.txt`.
      names: names of the files to read in a directory.

    Returns:
      Name -> contents of the files that exist.

    Raises:
      UserError: `path` has no tokenizer files, although some of them are wanted.
    """
    found = find(path)
    if found is None and TOKENIZER & set(names):
        raise UserError(
            f"{path}: tokenizer files not found. Give a Hugging Face directory with {', '.join(VOCABULARIES)}, a "
            f"SentencePiece {SENTENCEPIECE} file, or a {WORDPIECE_FILE}."
        )
    if found is not None and found.endswith((SENTENCEPIECE, WORDPIECE)) and paths.is_file(found):
        return {single_name(found): paths.read_bytes(found)}
    return {name: paths.read_bytes(paths.join(path, name)) for name in paths.listdir(path) if name in names}


def write(files: Mapping[str, bytes], directory: str) -> None:
    """Writes files.

    Args:
      files: name -> contents.
      directory: a directory, local or in a bucket; created if missing.
    """
    for name, contents in files.items():
        paths.write_atomic(paths.join(directory, name), contents)
