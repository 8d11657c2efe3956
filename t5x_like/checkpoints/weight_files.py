"""Detects the format of a directory with weights, and explains why one cannot be read."""

import json
import re

from t5x_like import paths
from t5x_like.errors import UserError

# Pickles, which can execute code when they are read, and other formats of weights that are not supported.
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_OTHER_FORMATS = (*_PICKLES, ".h5", ".msgpack", ".npz", ".gguf")
# Ends of the names of files with adapters alone.
_ADAPTERS = (".safetensors", ".npy")
_WORD_VECTORS = (".vec", ".txt", ".bin")
_TENSORFLOW_INDEX = ".index"
# The files of each format of `interop.formats` that is a directory.
_PUBLISHED = (("options.json", "weights.hdf5"),)
# The name of a model on the Hugging Face Hub, with or without its owner.
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def is_huggingface(path: str) -> bool:
    """Returns whether `path` is a Hugging Face directory with safetensors, as `save_pretrained` writes it."""
    names = paths.listdir(path)
    return "config.json" in names and any(name.startswith("model.safetensors") for name in names)


def is_adapter(path: str) -> bool:
    """Returns whether `path` has adapters of other libraries (`interop.adapter_files`). Only `convert` reads them."""
    return "adapter_config.json" in paths.listdir(path) or (path.endswith(_ADAPTERS) and paths.is_file(path))


def is_word_vectors(path: str) -> bool:
    """Returns whether `path` is a file of word vectors (`interop.word_vectors`). Only `convert` reads it."""
    return path.endswith(_WORD_VECTORS) and paths.is_file(path)


def is_published(path: str) -> bool:
    """Returns whether `path` is a directory of a published format (`interop.formats`). Only `convert` reads it."""
    return any(paths.find_with_prefix(path, files) is not None for files in _PUBLISHED)


def find_t5x(path: str) -> str | None:
    """Finds the index of a T5X checkpoint: its msgpack file, or the `_METADATA` of Orbax.

    Args:
      path: A checkpoint of T5X (`checkpoint_1000`, a directory or a legacy file), or T5X's MODEL_DIR, whose newest
        checkpoint is meant.

    Returns:
      The path of the index, or None if `path` is not a T5X checkpoint.
    """
    path = path.rstrip("/")
    names = paths.listdir(path)
    if not names:
        is_legacy = re.search(r"checkpoint(_\d+)?$", path) and paths.is_file(path)
        return path if is_legacy else None
    if steps := [int(name.removeprefix("checkpoint_")) for name in names if re.fullmatch(r"checkpoint_\d+", name)]:
        return find_t5x(paths.join(path, f"checkpoint_{max(steps)}"))
    if any(name.endswith(".index") for name in names):  # a TensorFlow checkpoint, which has a file `checkpoint` as well
        return None
    directories = [path]
    is_own = "feed" in names or "about" in names  # an incomplete copy of a checkpoint of this project may lack one
    if "state" in names and not is_own:
        directories.append(paths.join(path, "state"))
    for directory in directories:
        for name in ("checkpoint", "_METADATA"):
            if paths.is_file(index := paths.join(directory, name)):
                return index
    return None


def find_tensorflow(path: str) -> str | None:
    """Finds a TensorFlow checkpoint.

    Args:
      path: A directory with one checkpoint, or the path of its files, with or without `.index`.

    Returns:
      The path of the files without `.index`, or None.

    Raises:
      UserError: The directory has several checkpoints.
    """
    path = path.rstrip("/").removesuffix(_TENSORFLOW_INDEX)
    if paths.is_file(f"{path}{_TENSORFLOW_INDEX}"):
        return path
    found = sorted(name for name in paths.listdir(path) if name.endswith(_TENSORFLOW_INDEX))
    if len(found) > 1:
        raise UserError(
            f"{path}: has {len(found)} TensorFlow checkpoints. Give one of them, such as "
            f"{path}/{found[-1].removesuffix(_TENSORFLOW_INDEX)}"
        )
    return paths.join(path, found[0].removesuffix(_TENSORFLOW_INDEX)) if found else None


def is_of_other_library(path: str) -> bool:
    """Returns whether `path` has the weights of another library rather than of a run."""
    is_other = is_huggingface(path) or is_adapter(path) or is_word_vectors(path) or is_published(path)
    return is_other or find_t5x(path) is not None or find_tensorflow(path) is not None


def not_found(setting: str, path: str, wanted: str) -> UserError:
    """Returns the error for weights that do not exist. Their path may be the name of a model on the Hugging Face Hub.

    Args:
      setting: What the user set, such as `HF_PATH`.
      path: Its value.
      wanted: What to give instead, after "Give ".
    """
    owner, _, _ = path.rpartition("/")
    if not _HUB_NAME.fullmatch(path) or (owner and paths.exists(owner)):
        return UserError(f"{setting}={path}: not found. Give {wanted}.")
    return UserError(
        f"{setting}={path}: not found. Give {wanted}. A model of the Hugging Face Hub must be downloaded "
        f"first: `hf download {path} --local-dir {path}` (`pip install huggingface_hub` has this command)."
    )


def explain_missing(path: str) -> str:
    """Explains why `path`, which is not a run, Hugging Face directory or T5X checkpoint, has no readable weights."""
    if find_tensorflow(path) is not None:
        return (
            f"{path}: is a TensorFlow checkpoint, which only convert reads. Run `t5x_like convert --input={path} "
            "--output=RUN`, and give RUN"
        )
    if is_word_vectors(path):
        return (
            f"{path}: a file of word vectors, which only convert reads. Run `t5x_like convert --input={path} "
            "--output=RUN`, and give RUN"
        )
    if is_published(path):
        return (
            f"{path}: published weights, which only convert reads. Run `t5x_like convert --input={path} "
            "--output=RUN`, and give RUN"
        )
    if not paths.is_file(path) and is_adapter(path):  # a file of safetensors may have a whole model
        return (
            f"{path}: adapters of another library, which only convert reads. Run `t5x_like convert --input={path} "
            "--output=RUN`, and give RUN"
        )
    if path.endswith(_PICKLES) and paths.is_file(path):
        return (
            f"{path}: a pickled file, which is not read because pickles can execute code. If it has updates of "
            'loralib, convert it once with torch and safetensors: python -c "import torch; from safetensors.torch '
            "import save_file; save_file({k: v.contiguous() for k, v in "
            f"torch.load('{path}', weights_only=True).items()}}, '{path.rpartition('.')[0]}.safetensors')\""
        )
    names = sorted(paths.listdir(path)) if paths.exists(path) else []
    others = [name for name in names if name.endswith(_OTHER_FORMATS)]
    if others:
        return (
            f"{path}: unsupported format of {others[0]}, only safetensors are read because pickles can execute code. "
            "If you trust the file, convert it once with transformers and torch: "
            f'python -c "from transformers import {_architecture(path)} as Model; '
            f"Model.from_pretrained('{path}').save_pretrained('{path}-safetensors')\""
        )
    if any(name.endswith(".safetensors") for name in names):
        lacking = "config.json" if "config.json" not in names else "model.safetensors"
        return (
            f"{path}: {lacking} not found next to {', '.join(names[:3])}. Give the directory that save_pretrained wrote"
        )
    return (
        f"{path}: no checkpoint found. Give a run directory, one of its checkpoints, a Hugging Face directory with "
        "config.json and model.safetensors, or a T5X checkpoint"
    )


def _architecture(path: str) -> str:
    try:
        return str(json.loads(paths.read_text(paths.join(path, "config.json")))["architectures"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return "AutoModel"
