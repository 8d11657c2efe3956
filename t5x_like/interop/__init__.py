"""Weights of other libraries, in and out: one mapping file a family, found by being here."""

import dataclasses
import functools
import importlib
import json
import pkgutil
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from t5x_like import parameters, paths
from t5x_like.errors import UserError
from t5x_like.interop import safetensors_files, tables

# What may differ from a stored configuration: none of it changes what the parameters mean. The vocabulary is left to
# the tensors' shapes, so that whoever starts with fresh embeddings may have another one.
FREE = ("vocab_size", "dropout_rate", "attention_dropout_rate", "dtype", "scan_layers", "remat")


@functools.cache
def families() -> tuple[tables.Family, ...]:
    """Every family that a module of this package describes in a constant `FAMILY`."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return tuple(module.FAMILY for module in modules if hasattr(module, "FAMILY"))


def config_from_huggingface(path: str) -> Any:
    """The configuration that a folder's config.json describes; `dtype` and layout are left to the platform.

    Raises:
      UserError: there is no such family, or it has something that there is none of here.
    """
    described = json.loads(paths.read_text(paths.join(path, "config.json")))
    return _family_of_type(described.get("model_type"), path).config_from(described, path)


def from_huggingface(path: str, **changes: Any) -> tuple[Any, Any]:
    """The configuration and the network of a folder.

    Args:
      path: local folder or bucket with `config.json` and safetensors.
      **changes: fields of the configuration to set, such as `scan_layers=True` or `dropout_rate=0.1`.

    Raises:
      UserError: a tensor is missing, superfluous or of the wrong shape, or there is no such family.
    """
    config = dataclasses.replace(config_from_huggingface(path), **changes)
    leaves = read(path, config)
    like = jax.eval_shape(config.make, jax.random.key(0))
    of_model = {name.removeprefix(tables.MODEL): jax.numpy.asarray(leaf) for name, leaf in leaves.items()}
    return config, parameters.unstack(of_model, like)


def read(path: str, config: Any) -> dict[str, np.ndarray]:
    """The tensors of a folder by our stored names (`model/…`, and `objective/…` for the heads that it holds), float32.

    Args:
      path: local folder or bucket with `config.json` and safetensors.
      config: the network's configuration, whatever layout; what the folder says must agree with it but for `FREE`.

    Raises:
      UserError: another family, another architecture, or a tensor missing, superfluous or of the wrong shape.
    """
    stored = config_from_huggingface(path)
    if type(stored) is not type(config):
        raise UserError(f"{path} holds a {type(stored).__name__}, but the model here is a {type(config).__name__}")
    differences = [
        f"{field.name}: {getattr(stored, field.name)!r} there, {getattr(config, field.name)!r} here"
        for field in dataclasses.fields(stored)
        if field.name not in FREE and getattr(stored, field.name) != getattr(config, field.name)
    ]
    if differences:
        raise UserError(f"{path} holds another network than the one configured: " + "; ".join(differences))
    return tables.read(path, _family_of(config), dataclasses.replace(config, vocab_size=stored.vocab_size))


def to_huggingface(params: Mapping[str, Any], config: Any, path: str) -> None:
    """Writes `config.json` and safetensors that `from_pretrained` of transformers reads.

    Args:
      params: `{"model": …}`, and `"objective"` with the heads to write; scanned or unrolled, or leaves by stored name.
      config: the network's configuration.
      path: local folder or bucket; made where it is missing.

    Raises:
      UserError: transformers has no such network, or no place for a head; nothing has been written then.
    """
    leaves = parameters.stack(parameters.named_leaves(params))
    family = _family_of(config)
    described = family.config_to(config, [name for name in leaves if name.startswith(tables.OBJECTIVE)])
    safetensors_files.write(path, tables.write(family, config, leaves))
    paths.write_atomic(paths.join(path, "config.json"), json.dumps(described, indent=2) + "\n")


def tensors_to_huggingface(params: Mapping[str, Any], config: Any) -> dict[str, np.ndarray]:
    """The tensors that `to_huggingface` writes; of any tree like `params`, such as a gradient."""
    return tables.write(_family_of(config), config, parameters.stack(parameters.named_leaves(params)))


def _family_of_type(model_type: str | None, path: str) -> tables.Family:
    known = {name: family for family in families() for name in family.model_types}
    if model_type not in known:
        raise UserError(f"{path}/config.json has model_type {model_type!r}; there are {', '.join(sorted(known))}")
    return known[model_type]


def _family_of(config: Any) -> tables.Family:
    for family in families():
        if family.config_class is type(config):
            return family
    raise UserError(f"there is no mapping to transformers for a {type(config).__name__}")
