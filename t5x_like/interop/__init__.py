"""Imports and exports weights in the format of Hugging Face transformers.

Each family has a module in this package with a constant `FAMILY`, which `registry.families` discovers.
"""

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from t5x_like import parameters, paths
from t5x_like.errors import UserError
from t5x_like.interop import (
    compressed_tensors,
    head_classes,
    json_files,
    safetensors_files,
    special_token_fields,
    tables,
    tensor_mapping,
)
from t5x_like.interop.generation import CONFIG, GENERATION_CONFIG
from t5x_like.interop.head_classes import TaskHead
from t5x_like.interop.registry import family_of, family_of_type, file_in_errors, find_family
from t5x_like.models import build, construct
from t5x_like.models.base import Model, ModelConfig
from t5x_like.objectives.heads import HeadForm

# Fields of a configuration that may differ from those in config.json, because parameters do not depend on them. Tensor
# shapes determine the vocabulary size, so that a run with new embeddings may have another vocabulary.
FREE_FIELDS = (
    "vocab_size",
    "dropout_rate",
    "attention_dropout_rate",
    "special_tokens",
    "dtype",
    "scan_layers",
    "remat",
)


# Further fields that may differ where tensors are compared one by one with another model's, because each of them
# is the length of a dimension, or decides whether a tensor exists.
SIZE_FIELDS = ("num_layers", "encoder_layers", "decoder_layers", "max_length", "num_token_types")


@contextlib.contextmanager
def _config_json(path: str) -> Iterator[tuple[tensor_mapping.Family, dict[str, Any]]]:
    """Returns the family and the contents of config.json, whose path is added to errors inside the context."""
    hf_config = json_files.read(file := paths.join(path, CONFIG))
    with file_in_errors(file):
        yield family_of_type(hf_config.get("model_type"), file), hf_config


def config_from_huggingface(path: str) -> ModelConfig:
    """Reads the configuration of a Hugging Face model.

    Args:
      path: local directory or bucket with config.json and optionally generation_config.json.

    Returns:
      The configuration. `dtype` and `scan_layers` are None; `special_tokens` holds the special token ids of both files.

    Raises:
      UserError: a file is invalid, or the model is not supported.
    """
    generation = paths.join(path, GENERATION_CONFIG)
    with _config_json(path) as (family, hf_config):
        special_token_fields.from_json(hf_config, None)  # raises for invalid ids, which families use
        config = family.config_from_json(hf_config)
    with file_in_errors(generation):
        generation_config = json_files.read(generation) if paths.is_file(generation) else None
        return dataclasses.replace(config, special_tokens=special_token_fields.from_json(hf_config, generation_config))


def from_huggingface(path: str, **changes: Any) -> tuple[ModelConfig, Model]:
    """Reads the configuration and the parameters of a Hugging Face model.

    Args:
      path: local directory or bucket with config.json and safetensors.
      **changes: fields of the configuration to replace, such as `scan_layers=True`, `dropout_rate=0.1` or
        `attention_windows=(64,)`. The shapes of the parameters must not change.

    Returns:
      The configuration and the model, with float32 parameters.

    Raises:
      UserError: a file is invalid, the model is not supported, a field is unknown, or a tensor is missing, unexpected
        or of the wrong shape.
    """
    stored = config_from_huggingface(path)
    if unknown := sorted(set(changes) - {field.name for field in dataclasses.fields(stored)}):
        known = ", ".join(field.name for field in dataclasses.fields(stored))
        raise UserError(f"{unknown[0]}: not a field of {type(stored).__name__}. Give one of {known}.")
    config = dataclasses.replace(stored, **changes)
    leaves = jax.tree.map(jax.numpy.asarray, _of_model(_read(path, family_of(config), config)))
    return config, parameters.unstack(leaves, build.shapes(config))


def read(path: str, config: ModelConfig, *, other_sizes: bool = False) -> dict[str, Float[np.ndarray, "..."]]:
    """Reads the parameters of a Hugging Face model, for a given configuration.

    Args:
      path: local directory or bucket with config.json and safetensors.
      config: configuration of the model, which must agree with config.json except for `FREE_FIELDS` and the free fields
        of the family.
      other_sizes: whether `SIZE_FIELDS` may differ too, and one of the two families extend the other.

    Returns:
      Stored name (`model/…`, and `objective/…` for the heads in the files) -> float32 array. Layers are stacked.

    Raises:
      UserError: family or architecture differ, or a tensor is missing, unexpected or of the wrong shape.
    """
    stored = _agreeing_config(path, config, other_sizes)
    return _read(path, family_of(stored), stored)


def model_shapes(path: str, config: ModelConfig, *, other_sizes: bool = False) -> dict[str, tuple[int, ...]]:
    """Returns stored name -> shape of the parameters that `read` returns, without heads.

    Reads config.json and the headers of the safetensors, whose names, shapes and sizes are checked. The
    arguments are described at `read`.

    Raises:
      UserError: family or architecture differ, a file is truncated, or a tensor is missing, unexpected or of the wrong
        shape.
    """
    stored = _agreeing_config(path, config, other_sizes)
    tables.check(path, *_tensors(path, family_of(stored), stored))
    shapes = tables.shapes(stored)
    return {name: shape if layers is None else (layers, *shape) for name, (shape, layers) in shapes.items()}


def _agreeing_config(path: str, config: ModelConfig, other_sizes: bool) -> ModelConfig:
    """Returns the configuration of a directory.

    Raises:
      UserError: it differs from the configuration of the model.
    """
    stored = config_from_huggingface(path)
    if type(stored) is not type(config):  # a part of the model may be of this family
        parts = [part for part in config.parts.values() if type(part) is type(stored)]
        config = min(parts, key=lambda part: len(_differences(stored, part, FREE_FIELDS)), default=config)
    family = find_family(config)
    same_family = type(stored) is type(config)
    if other_sizes or family is None:  # a model that transformers lacks may begin as one that it has, as ERNIE as BERT
        same_family = isinstance(stored, type(config)) or isinstance(config, type(stored))
    if not same_family:
        raise UserError(
            f"{path}: has a {type(stored).__name__}, but the model is a {type(config).__name__}. Give a model of the "
            "same family, or another directory."
        )
    free = {*FREE_FIELDS, *(family or family_of(stored)).free_fields, *(SIZE_FIELDS if other_sizes else ())}
    if differences := _differences(stored, config, free):
        raise UserError(
            f"{path}: architecture differs from the configured model: {', '.join(differences)}. Change the model, or "
            "give another directory."
        )
    return stored


def _differences(stored: Any, config: Any, free: Collection[str], prefix: str = "") -> list[str]:
    """Returns the fields, also of configurations of parts, in which two configurations differ, with both values."""
    found = []
    for name in [field.name for field in dataclasses.fields(stored) if field.name not in free]:
        theirs, ours = getattr(stored, name), getattr(config, name, getattr(stored, name))
        if name in stored.parts and type(theirs) is type(ours):
            found += _differences(theirs, ours, free, f"{prefix}{name}.")
        elif theirs != ours:
            found.append(f"{prefix}{name}={theirs!r} instead of {ours!r}")
    return found


def _read(path: str, family: tensor_mapping.Family, config: ModelConfig) -> dict[str, Float[np.ndarray, "..."]]:
    return tables.read(path, *_tensors(path, family, config))


def _tensors(path: str, family: tensor_mapping.Family, config: ModelConfig) -> tuple[Any, ...]:
    """Returns the arguments of `tables.read` after the directory."""
    with _config_json(path) as (_, hf_config):
        return family, config, head_classes.class_of_directory(family, hf_config), family.omitted(hf_config)


def task_head(path: str) -> TaskHead | None:
    """Reads which head of a downstream task a Hugging Face directory has.

    Args:
      path: local directory or bucket with config.json.

    Returns:
      The head, or None if the directory has none.

    Raises:
      UserError: config.json is invalid, or the model or its head is not supported.
    """
    with _config_json(path) as (family, hf_config):
        found = head_classes.class_of_directory(family, hf_config)
        if found is None:
            return None
        labels = head_classes.labels_from_json(hf_config) if found.has_labels else ()
        return TaskHead(found.head, found.form(hf_config), labels, head_classes.predicts(found, hf_config))


def head_names(path: str) -> set[str]:
    """Returns the stored names (`objective/…`) of the parameters of the heads in a Hugging Face directory.

    Args:
      path: local directory or bucket with config.json and safetensors.

    Raises:
      UserError: a file is invalid, or the model or its head is not supported.
    """
    with _config_json(path) as (family, hf_config):
        head_class = head_classes.class_of_directory(family, hf_config)
    return tables.head_names(path, family, config_from_huggingface(path), head_class)


def head_form(path: str, name: str) -> HeadForm:
    """Returns the form in which transformers has a head for the model of a Hugging Face directory.

    Args:
      path: local directory or bucket with config.json.
      name: name of the head, such as `sequence_classification` or `token_classification`.

    Raises:
      UserError: config.json is invalid, or transformers does not have such a head for the family.
    """
    with _config_json(path) as (family, hf_config):
        return head_classes.form_of(family, hf_config, name)


def to_huggingface(
    params: Mapping[str, Any],
    config: ModelConfig,
    path: str,
    *,
    labels: Sequence[str] = (),
    predicts: str = "label",
    dropout_rate: float | None = None,
    padding_id: int | None = None,
    generation_settings: Mapping[str, Any] | None = None,
    integers: compressed_tensors.Integers | None = None,
) -> None:
    """Writes config.json and safetensors for `from_pretrained` of transformers.

    If the special tokens were imported with a generation_config.json, or there are settings of generation, a
    generation_config.json is written as well. Adapters are merged; see `merge_adapters`.

    Args:
      params: `{"model": …}`, optionally with the heads to write in `"objective"`; scanned, unrolled or by stored name.
      config: configuration of the model.
      path: local directory or bucket, created if missing.
      labels: names of the labels, or the scores, of the head of a task. By default `LABEL_0`, `LABEL_1`, ….
      predicts: what the head of a text predicts; see `Objective.predicts`. A single output is always a score.
      dropout_rate: dropout rate of this head, if it is not the default of the class of transformers.
      padding_id: `pad_token_id` for a head that reads the last token of a decoder, which transformers finds by it. It
        is written if the special tokens of the model do not have one.
      generation_settings: keys of generation_config.json with their values, except for special tokens.
      integers: how the kernels were rounded, to write them in integers; None to write float32.

    Raises:
      UserError: transformers does not support the model, a head, or the integers. No file is written then.
    """
    config, leaves = merge_adapters(config, parameters.stack(parameters.named_leaves(params)))
    family = family_of(config)
    hf_config, head_class = describe_class(family, config, leaves)
    if head_class is not None:
        outputs = leaves[head_class.table[-1].name].shape[-1]
        hf_config |= head_classes.labels_to_json(head_class, outputs, labels, dropout_rate, predicts=predicts)
        hf_config |= head_classes.padding_to_json(head_class, hf_config, padding_id)
    tensors = family.unused(config, hf_config["architectures"][0]) | tables.write(family, config, leaves, head_class)
    if integers is not None:

        def to_tensors(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
            zeros = {name: np.zeros(np.shape(leaf), np.float32) for name, leaf in leaves.items()}
            return tables.write(family, config, zeros | dict(values), head_class)

        layouts = tables.layouts(family, config, leaves, head_class)
        matrices = {name for name, layout in layouts.items() if layout == "linear"}
        found = compressed_tensors.encode(tensors, integers, matrices, to_tensors)
        tensors, hf_config[compressed_tensors.KEY] = found
    safetensors_files.write(path, tensors)
    tokens = config.special_tokens
    ids = None if tokens is None else tokens.generation
    if generation_settings or ids is not None:
        # Without a file of their own, the ids of `generate` come from config.json.
        known = ids if ids is not None else tokens.config if tokens is not None else ()
        _write({**(generation_settings or {}), **dict(known)}, paths.join(path, GENERATION_CONFIG))
    _write(hf_config, paths.join(path, CONFIG))


def exported_class(config: ModelConfig, names: Iterable[str]) -> str:
    """Returns the class of transformers that `to_huggingface` writes.

    Args:
      config: configuration of the model.
      names: stored names of its parameters and heads.

    Raises:
      UserError: transformers does not support the model or a head.
    """
    hf_config, head_class = describe_class(family_of(config), config, names)
    return hf_config["architectures"][0] if head_class is None else head_class.name


def describe_class(
    family: tensor_mapping.Family, config: ModelConfig, names: Iterable[str]
) -> tuple[dict[str, Any], tensor_mapping.HeadClass | None]:
    """Returns the contents of config.json for parameters, and the class of a downstream task if they have its head.

    Args:
      family: family of the model.
      config: configuration of the model.
      names: stored names of its parameters and heads.
    """
    heads = [name for name in names if name.startswith(tables.OBJECTIVE)]
    bare = family.config_to_json(config, [])
    head_class = head_classes.class_of_parameters(family, bare, heads)
    return (bare if head_class is not None else family.config_to_json(config, heads)), head_class


def _write(contents: Mapping[str, Any], file: str) -> None:
    paths.write_atomic(file, json.dumps(contents, indent=2) + "\n")


def tensors_to_huggingface(params: Mapping[str, Any], config: ModelConfig) -> dict[str, Float[np.ndarray, "..."]]:
    """Returns the tensors that `to_huggingface` writes.

    Args:
      params: as for `to_huggingface`, or gradients of the same structure.
      config: configuration of the model.

    Returns:
      Hugging Face name -> float32 array.
    """
    family, leaves = family_of(config), parameters.stack(parameters.named_leaves(params))
    has_heads = any(name.startswith(tables.OBJECTIVE) for name in leaves)
    head_class = describe_class(family, config, leaves)[1] if has_heads else None
    return tables.write(family, config, leaves, head_class)


def merge_adapters(config: ModelConfig, leaves: Mapping[str, Any]) -> tuple[ModelConfig, dict[str, Any]]:
    """Adds the updates of adapters to the kernels of a model, which then has the same outputs without adapters.

    Args:
      config: configuration of the model.
      leaves: stored name -> array; names of the model begin with `model/`. Layers are stacked.

    Returns:
      The configuration and the parameters without adapters.
    """
    if not config.adapters:
        return config, dict(leaves)
    merged = construct.merge(parameters.rebuild(build.stacked_shapes(config), _of_model(leaves)))
    others = {name: leaf for name, leaf in leaves.items() if not name.startswith(tables.MODEL)}
    return construct.without_adapters(config), {
        tables.MODEL + name: leaf for name, leaf in parameters.named_leaves(merged).items()
    } | others


def _of_model(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of the model by their names in it."""
    return {name.removeprefix(tables.MODEL): leaf for name, leaf in leaves.items() if name.startswith(tables.MODEL)}


def fold_norms(config: ModelConfig, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Folds the affine norms of a model into its projections; see `nonorm_folding`.

    Args:
      config: configuration of the model.
      leaves: stored name -> array. Layers are stacked.

    Returns:
      The parameters of a model with the same configuration and the same outputs up to rounding.

    Raises:
      UserError: the model does not have affine norms, or its values cannot be folded.
    """
    family = find_family(config)
    if family is None or family.fold_norms is None:
        raise UserError(f"FOLD_NORMS=True: a {type(config).__name__} has no norms to fold. Omit it.")
    return family.fold_norms(config, leaves)
