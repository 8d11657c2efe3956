"""Folders that hold weights: which kind a folder is, and what to do where it is none that can be read."""

import json

from t5x_like import paths

# Weights as other tools write them; the first four are pickles, which can run any code when they are read.
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".index", ".npz", ".gguf")


def is_huggingface(path: str) -> bool:
    """Whether `path` is a folder as `save_pretrained` of transformers writes it, with safetensors."""
    names = paths.listdir(path)
    return "config.json" in names and any(name.startswith("model.safetensors") for name in names)


def explain_missing(path: str) -> str:
    """Why no weights can be read from `path`, which is neither a run nor `is_huggingface`, and what to do."""
    names = sorted(paths.listdir(path)) if paths.exists(path) else []
    others = [name for name in names if name.endswith(_OTHER_FORMATS)]
    if others:
        return (
            f"{path}: weights in {others[0]} cannot be read; only safetensors can, since pickles run code. Where you "
            "trust the file, convert it once with transformers and torch: "
            f'python -c "from transformers import {_architecture(path)} as Model; '
            f"Model.from_pretrained('{path}').save_pretrained('{path}-safetensors')\""
        )
    if any(name.endswith(".safetensors") for name in names):
        lacking = "config.json" if "config.json" not in names else "model.safetensors"
        return f"{path}: {lacking} not found beside {', '.join(names[:3])}. Give the folder that save_pretrained wrote"
    return (
        f"{path}: no checkpoint found. Give a run directory, one of its checkpoints, or a Hugging Face folder with "
        "config.json and model.safetensors"
    )


def _architecture(path: str) -> str:
    try:
        return str(json.loads(paths.read_text(paths.join(path, "config.json")))["architectures"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return "AutoModel"
