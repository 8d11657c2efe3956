"""Checks of the paths that a command reads and writes, before anything heavy is imported or built."""

from collections.abc import Mapping, Sequence
from typing import Any

from t5x_like import checkpoint_paths, paths
from t5x_like.checkpoints import weight_files
from t5x_like.errors import UserError

# Macros of paths that must exist. A command writes to all its other paths.
CHECKPOINTS = ("INITIAL_CHECKPOINT_PATH", "CHECKPOINT_PATH", "TEACHER")
INPUTS = ("INPUT_PATH",)
# The path of standard input and output.
STANDARD = "-"


def check_paths(names: Sequence[str], macros: Mapping[str, Any], files: Sequence[str] = ()) -> None:
    """Checks that the local paths of a command exist or can be written. Buckets are checked when they are opened.

    Args:
      names: The macros with the paths of a command, see `Command.paths`.
      macros: Values of macros by name. OVERWRITE is whether to replace existing files.
      files: Those of `names` that are files to write; see `Command.files`.

    Raises:
      UserError: A path is missing or not writable, or a file exists. The message names its macro.
    """
    for name in names:
        path = macros.get(name)
        if not isinstance(path, str) or not paths.is_local(path):
            continue
        if name in ("INPUT_PATH", "OUTPUT_PATH") and path == STANDARD:
            continue
        if name in INPUTS:
            if not paths.is_file(path):
                raise UserError(f"{name}={path}: file not found. Give an existing .txt, .jsonl, .csv or .tsv file.")
        elif name in files:
            paths.check_output_file(name, path, overwrite=macros.get("OVERWRITE") is not False)
        elif name not in CHECKPOINTS:
            paths.check_writable(name, path)
            if name == "MODEL_DIR":
                checkpoint_paths.check_checkpoint_directory(name, path)
        elif name != "INITIAL_CHECKPOINT_PATH" or not _may_resume(macros.get("MODEL_DIR")):
            _check_checkpoint(name, path)


def _may_resume(model_dir: Any) -> bool:
    """Returns whether a run may have checkpoints of its own, so that it does not read its initial checkpoint."""
    return isinstance(model_dir, str) and (
        not paths.is_local(model_dir) or _has_steps(paths.join(model_dir, "checkpoints"))
    )


def _has_steps(directory: str) -> bool:
    return any(name.isdigit() for name in paths.listdir(directory))


def _check_checkpoint(setting: str, path: str) -> None:
    path = path.rstrip("/").removesuffix("/checkpoints/best")  # resolved when the run is read
    if setting == "CHECKPOINT_PATH" and (
        weight_files.is_adapter(path)
        or weight_files.is_word_vectors(path)
        or weight_files.is_published(path)
        or weight_files.find_tensorflow(path) is not None
    ):
        return  # convert reads it; other commands explain what to do
    if not paths.exists(path):
        # A T5X checkpoint does not describe its model, which a teacher must.
        of_run = "a run directory, one of its checkpoints"
        wanted = (
            "or a Hugging Face directory" if setting == "TEACHER" else "a Hugging Face directory, or a T5X checkpoint"
        )
        raise weight_files.not_found(setting, path, f"{of_run}, {wanted}")
    is_step = path.rstrip("/").rpartition("/")[2].isdigit() and path.rstrip("/").split("/")[-2:-1] == ["checkpoints"]
    is_run = is_step or _has_steps(path) or _has_steps(paths.join(path, "checkpoints"))
    if setting == "TEACHER" and checkpoint_paths.is_teacher_logits(path):
        return
    if not (is_run or weight_files.is_huggingface(path) or weight_files.find_t5x(path)):
        raise UserError(f"{setting}={weight_files.explain_missing(path)}")
