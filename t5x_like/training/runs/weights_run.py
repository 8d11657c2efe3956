"""Run directories that are made from weights, without training; `convert` and `prune` write them."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp

from t5x_like import paths
from t5x_like.checkpoints.manager import Checkpoints
from t5x_like.errors import UserError
from t5x_like.runtime import run_files
from t5x_like.vocabularies import tokenizer_files


def check_new(output_path: str) -> None:
    """Checks that an output directory is new or empty.

    Raises:
      UserError: It has files.
    """
    if paths.exists(output_path) and paths.listdir(output_path):
        raise UserError(f"OUTPUT_PATH={output_path}: exists and is not empty. Give a new directory.")


@contextlib.contextmanager
def removed_on_failure(output_path: str) -> Iterator[None]:
    """Deletes the output if it is not written completely, and explains errors of its storage."""
    try:
        with paths.explain_storage_errors("OUTPUT_PATH", output_path):
            yield
    except BaseException:
        paths.remove_directory(output_path)
        raise


def write(
    output_path: str,
    leaves: Mapping[str, Any],
    config: str,
    *,
    about: Mapping[str, Any],
    tokenizer: Mapping[str, bytes],
    files: Mapping[str, str] | None = None,
) -> None:
    """Writes a run directory with one checkpoint, of step 0. `train` starts from it, but does not resume it.

    Args:
      output_path: The directory, local or in a bucket.
      leaves: Stored name, `model/…` or `objective/…` -> array. Layers are stacked.
      config: The text of config.gin.
      about: Where the weights come from, as JSON values.
      tokenizer: Name -> contents of the files of the tokenizer.
      files: Name -> text of further files.
    """
    with contextlib.closing(Checkpoints(paths.join(output_path, run_files.CHECKPOINTS))) as checkpoints:
        checkpoints.save(0, {"params": {name: jnp.asarray(leaf) for name, leaf in leaves.items()}}, about=about)
        checkpoints.wait()
    tokenizer_files.write(tokenizer, paths.join(output_path, run_files.TOKENIZER))
    for name, text in (files or {}).items():
        paths.write_atomic(paths.join(output_path, name), text)
    # config.gin comes last: a directory that has it is complete.
    paths.write_atomic(paths.join(output_path, run_files.CONFIG), config)
