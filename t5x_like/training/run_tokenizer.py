"""The copy of the tokenizer in a run directory, which makes the run independent of the directory it started from."""

import json
from collections.abc import Mapping

from t5x_like import paths
from t5x_like.data import tokenizer_files, vocabulary_digest
from t5x_like.errors import UserError
from t5x_like.runtime.run_files import TOKENIZER, VOCABULARY
from t5x_like.training import weight_files


def store(
    model_dir: str, vocabulary_path: str | None, initial_checkpoint_path: str | None, digest: str | None = None
) -> None:
    """Copies the tokenizer, and the files that describe the initial model, to `MODEL_DIR/tokenizer`.

    Args:
      model_dir: the run directory.
      vocabulary_path: a Hugging Face directory or a SentencePiece model; None for a task with its own vocabulary.
      initial_checkpoint_path: the initial weights. A Hugging Face directory has files that describe the model.
      digest: the digest of the vocabulary, if it is known.

    Raises:
      UserError: `vocabulary_path` has no tokenizer files.
    """
    files: Mapping[str, bytes] = tokenizer_files.read(vocabulary_path) if vocabulary_path else {}
    # A single SentencePiece model next to a config.json would be read as the tokenizer of that model.
    single = len(files) == 1 and next(iter(files)).endswith(tokenizer_files.SENTENCEPIECE)
    names = tokenizer_files.MODEL - {"config.json"} if single else tokenizer_files.MODEL
    if initial_checkpoint_path and weight_files.is_huggingface(initial_checkpoint_path):
        files = {**files, **tokenizer_files.read(initial_checkpoint_path, names)}
    tokenizer_files.write(files, paths.join(model_dir, TOKENIZER))
    if digest is not None:
        paths.write_atomic(paths.join(model_dir, VOCABULARY), json.dumps({"digest": digest}) + "\n")


def stored_digest(directory: str) -> str | None:
    """Returns the digest of the vocabulary of a run or of a Hugging Face directory, or None if it does not have one.

    Args:
      directory: a run directory, whose tokenizer has a digest also if the run stored none, or a Hugging Face directory.
    """
    if paths.exists(stored := paths.join(directory, VOCABULARY)):
        return json.loads(paths.read_text(stored))["digest"]
    return vocabulary_digest.of_path(paths.join(directory, TOKENIZER)) or vocabulary_digest.of_path(directory)


def check(model_dir: str, vocabulary_path: str | None) -> None:
    """Checks that the tokenizer of a run to resume is the one that it started with.

    Raises:
      UserError: a file differs from the copy in the run directory.
    """
    copy = paths.join(model_dir, TOKENIZER)
    if not vocabulary_path or tokenizer_files.find(copy) is None:
        return
    stored = tokenizer_files.read(copy, tokenizer_files.TOKENIZER)
    given = tokenizer_files.read(vocabulary_path, tokenizer_files.TOKENIZER)
    if different := sorted(name for name in stored.keys() | given.keys() if stored.get(name) != given.get(name)):
        raise UserError(
            f"VOCABULARY_PATH={vocabulary_path}: {different[0]} differs from the tokenizer of the run, {copy}. Give "
            f"that one with --gin.VOCABULARY_PATH={copy}, or another MODEL_DIR."
        )
