"""Weights of other libraries, in and out: one mapping file a family, found by being here."""

import contextlib
import dataclasses
import functools
import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from t5x_like import parameters, paths
from t5x_like.errors import UserError
from t5x_like.interop import fields, json_files, safetensors_files, special_token_fields, tables
from t5x_like.models.base import Model, ModelConfig

# What may differ from a stored configuration: none of it changes what the parameters mean. The vocabulary is left to
# the tensors' shapes, so that whoever starts with fresh embeddings may have another one.
FREE_FIELDS = (
    "vocab_size",
    "dropout_rate",
    "attention_dropout_rate",
    "special_tokens",
    "dtype",
    "scan_layers",
    "remat",
)

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"


@functools.cache
def families() -> tuple[tables.Family, ...]:
    """Every family that a module of this package describes in a constant `FAMILY`."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return tuple(module.FAMILY for module in modules if hasattr(module, "FAMILY"))


def config_from_huggingface(path: str) -> ModelConfig:
    """The configuration that a folder's config.json describes; `dtype` and layout are left to the platform.

    The ids of special tokens, from config.json and generation_config.json, are in its field `special_tokens`.

    Args:
      path: local folder or bucket.

    Raises:
      UserError: a file is damaged, or describes a model that is not supported.
    """
    file, generation = paths.join(path, CONFIG), paths.join(path, GENERATION_CONFIG)
    hf_config = json_files.read(file)
    family = _family_of_type(hf_config.get("model_type"), file)
    with _named(file):
        special_token_fields.from_json(hf_config, None)  # checked first: a family may compute with an id
        config = family.config_from_json(hf_config)
    with _named(generation):
        stated = json_files.read(generation) if paths.is_file(generation) else None
        return dataclasses.replace(config, special_tokens=special_token_fields.from_json(hf_config, stated))


@contextlib.contextmanager
def _named(file: str) -> Iterator[None]:
    """Adds the file to the message of a UserError that does not name it."""
    try:
        yield
    except UserError as error:
        raise error if file in str(error) else UserError(f"{file}: {error}") from None


def from_huggingface(path: str, **changes: Any) -> tuple[ModelConfig, Model]:
    """The configuration and the model of a folder.

    Args:
      path: local folder or bucket with `config.json` and safetensors.
      **changes: fields of the configuration to set, such as `scan_layers=True`, `dropout_rate=0.1` or
        `attention_windows=(64,)`; any that leaves every parameter its shape.

    Raises:
      UserError: a file is damaged, its model is not supported, the configuration has no such field, or a tensor is
        missing, unexpected or of the wrong shape.
    """
    stored = config_from_huggingface(path)
    if unknown := sorted(set(changes) - {field.name for field in dataclasses.fields(stored)}):
        raise UserError(f"{type(stored).__name__} has no field {unknown[0]!r}")
    config = dataclasses.replace(stored, **changes)
    leaves = tables.read(path, _family_of(config), config)
    like = jax.eval_shape(config.make, jax.random.key(0))
    of_model = {
        name.removeprefix(tables.MODEL): jax.numpy.asarray(leaf)
        for name, leaf in leaves.items()
        if name.startswith(tables.MODEL)
    }
    return config, parameters.unstack(of_model, like)


def read(path: str, config: ModelConfig) -> dict[str, np.ndarray]:
    """The tensors of a folder by our stored names (`model/…`, and `objective/…` for the heads that it holds), float32.

    Args:
      path: local folder or bucket with `config.json` and safetensors.
      config: the network's configuration, whatever layout; what the folder says must agree with it, except for
        `FREE_FIELDS` and the family's own free fields.

    Raises:
      UserError: another family, another architecture, or a tensor missing, superfluous or of the wrong shape.
    """
    stored, family = config_from_huggingface(path), _family_of(config)
    if type(stored) is not type(config):
        raise UserError(f"{path} holds a {type(stored).__name__}, but the model here is a {type(config).__name__}")
    differences = [
        f"{field.name}: {getattr(stored, field.name)!r} there, {getattr(config, field.name)!r} here"
        for field in dataclasses.fields(stored)
        if field.name not in (*FREE_FIELDS, *family.free_fields)
        and getattr(stored, field.name) != getattr(config, field.name)
    ]
    if differences:
        raise UserError(f"{path} holds another network than the one configured: " + "; ".join(differences))
    return tables.read(path, family, dataclasses.replace(config, vocab_size=stored.vocab_size))


def to_huggingface(params: Mapping[str, Any], config: ModelConfig, path: str) -> None:
    """Writes `config.json` and safetensors that `from_pretrained` of transformers reads.

    A generation_config.json is written where the special tokens came with one, and holds nothing else.

    Args:
      params: `{"model": …}`, and `"objective"` with the heads to write; scanned or unrolled, or leaves by stored name.
      config: the network's configuration.
      path: local folder or bucket; made where it is missing.

    Raises:
      UserError: transformers has no such network, or no place for a head; nothing has been written then.
    """
    leaves = parameters.stack(parameters.named_leaves(params))
    family = _family_of(config)
    hf_config = family.config_to_json(config, [name for name in leaves if name.startswith(tables.OBJECTIVE)])
    safetensors_files.write(path, tables.write(family, config, leaves))
    if config.special_tokens is not None and config.special_tokens.generation is not None:
        _write(dict(config.special_tokens.generation), paths.join(path, GENERATION_CONFIG))
    _write(hf_config, paths.join(path, CONFIG))


def _write(contents: Mapping[str, Any], file: str) -> None:
    paths.write_atomic(file, json.dumps(contents, indent=2) + "\n")


def tensors_to_huggingface(params: Mapping[str, Any], config: ModelConfig) -> dict[str, np.ndarray]:
    """The tensors that `to_huggingface` writes; of any tree like `params`, such as a gradient."""
    return tables.write(_family_of(config), config, parameters.stack(parameters.named_leaves(params)))


def _family_of_type(model_type: Any, file: str) -> tables.Family:
    known = {name: family for family in families() for name in family.model_types}
    with _named(file):
        return fields.choice({"model_type": model_type}, "model_type", dict(sorted(known.items())))


def _family_of(config: ModelConfig) -> tables.Family:
    for family in families():
        if family.config_class is type(config):
            return family
    raise UserError(f"there is no mapping to transformers for a {type(config).__name__}")
