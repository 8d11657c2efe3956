"""Detects the format of a directory with weights, and explains why one cannot be read."""

import json

from t5x_like import paths

# Formats of weights that are not supported. The first four are pickles, which can execute code when they are read.
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".index", ".npz", ".gguf")


def is_huggingface(path: str) -> bool:
    """Whether `path` is a Hugging Face directory with safetensors, as `save_pretrained` writes it."""
    names = paths.listdir(path)
    return "config.json" in names and any(name.startswith("model.safetensors") for name in names)


def explain_missing(path: str) -> str:
    """Explains why no weights can be read from `path`, which is not a run or Hugging Face directory, and what to do."""
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
        f"{path}: no checkpoint found. Give a run directory, one of its checkpoints, or a Hugging Face directory with "
        "config.json and model.safetensors"
    )


def _architecture(path: str) -> str:
    try:
        return str(json.loads(paths.read_text(paths.join(path, "config.json")))["architectures"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return "AutoModel"
