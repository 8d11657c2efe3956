"""Weights of other libraries, in and out: one mapping file a family."""

import dataclasses
import json
from typing import Any

from t5x_like import paths
from t5x_like.interop import t5

# By the `model_type` of a config.json.
FAMILIES = {"t5": t5}

# What may differ from a stored configuration: none of it changes what the parameters mean. The vocabulary is left to
# the tensors' shapes, so that whoever starts with fresh embeddings may have another one.
FREE = ("vocab_size", "dropout_rate", "dtype", "scan_layers", "remat")


def is_huggingface(path: str) -> bool:
    """Whether `path` is a folder as `save_pretrained` of transformers writes it, with safetensors."""
    names = paths.listdir(path)
    return "config.json" in names and any(name.startswith("model.safetensors") for name in names)


def from_huggingface(path: str, config: Any) -> Any:
    """The network stored in a Hugging Face folder, in the layout of `config`.

    Args:
      path: local folder or bucket.
      config: the configuration that the caller has; what the folder says must agree with it.

    Returns:
      A network whose configuration is `config` with the folder's vocabulary size.

    Raises:
      ValueError: another family, another architecture, or a tensor missing, superfluous or of the wrong shape.
    """
    described = json.loads(paths.read_text(paths.join(path, "config.json")))
    family = FAMILIES.get(described.get("model_type"))
    if family is None:
        raise ValueError(
            f"{path}/config.json has model_type {described.get('model_type')!r}; there are {sorted(FAMILIES)}"
        )
    stored = family.config_from_huggingface(described, path)
    if type(stored) is not type(config):
        raise ValueError(f"{path} holds a {type(stored).__name__}, but the model here is a {type(config).__name__}")
    differences = [
        f"{field.name}: {getattr(stored, field.name)!r} there, {getattr(config, field.name)!r} here"
        for field in dataclasses.fields(stored)
        if field.name not in FREE and getattr(stored, field.name) != getattr(config, field.name)
    ]
    if differences:
        raise ValueError(f"{path} holds another network than the one configured: " + "; ".join(differences))
    return family.read(path, dataclasses.replace(config, vocab_size=stored.vocab_size))
