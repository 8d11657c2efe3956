"""Reads and writes Hugging Face weights through a table of tensor mappings, one table per family."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Float

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.interop.stored_tensors import LOGITS, StoredTensors
from t5x_like.interop.tensor_mapping import Family, HeadClass, Layout, TensorMapping
from t5x_like.models import build
from t5x_like.models.base import ModelConfig

MODEL, OBJECTIVE = "model/", "objective/"


def read(
    directory: str,
    family: Family,
    config: ModelConfig,
    head_class: HeadClass | None = None,
    omitted: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Float[np.ndarray, "..."]]:
    """Reads the parameters of the whole model, and of the heads that the directory has.

    Args:
      directory: local directory or bucket with safetensors.
      family: the family of the model.
      config: configuration of the model.
      head_class: class of the directory if it has the head of a downstream task. The kernel of the logits, which such
        a class does not have, is 0 then.
      omitted: tensors that may be missing; see `Family`.

    Returns:
      Stored name -> float32 array. Layers are stacked.

    Raises:
      UserError: a tensor is missing, unexpected or of the wrong shape.
    """
    source = StoredTensors(directory, family, {} if head_class is not None else omitted)
    leaves: dict[str, np.ndarray] = {}
    for mapping, shape, layers in _expected(source, family, config, head_class):
        if head_class is not None and mapping.name == LOGITS and not source.has(mapping.hf_name):
            logging.warning("%s: a %s has no logits over the vocabulary: they are 0", directory, head_class.name)
            leaves[mapping.name] = np.zeros(shape, np.float32)
        elif layers is None:
            leaves[mapping.name] = source.read(mapping, mapping.hf_name, shape)
        else:
            numbers = range(mapping.first_layer, mapping.first_layer + layers)
            per_layer = [source.read(mapping, mapping.hf_name.format(i=i), shape) for i in numbers]
            leaves[mapping.name] = np.stack(per_layer)
    source.check_unread(config)
    return leaves


def check(
    directory: str,
    family: Family,
    config: ModelConfig,
    head_class: HeadClass | None = None,
    omitted: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Checks names and shapes of all tensors and the sizes of their files, which the headers of the files state.

    Raises:
      UserError: as `read`, but for the values of tensors.
    """
    source = StoredTensors(directory, family, {} if head_class is not None else omitted)
    for mapping, shape, layers in _expected(source, family, config, head_class):
        if head_class is None or mapping.name != LOGITS or source.has(mapping.hf_name):
            for i in range(mapping.first_layer, mapping.first_layer + (layers or 1)):
                source.take(mapping, mapping.hf_name.format(i=i), shape)
    source.check_names(config)


def _expected(
    source: StoredTensors, family: Family, config: ModelConfig, head_class: HeadClass | None
) -> Iterator[tuple]:
    """Yields the mapping of each parameter of the model and of the heads that a directory has, its shape, and layers.

    The shape is per layer; the number of layers is None for a parameter outside of stacks.
    """
    expected = shapes(config)
    for mapping in _mappings(family, config, head_class):
        if mapping.name in expected:
            yield mapping, *expected[mapping.name]
        elif head_class is not None or source.has(mapping.hf_name):
            # Heads have the same dimensions on both sides, so that hf_shape is its own inverse for them.
            yield mapping, mapping.hf_shape(source.shape(mapping.hf_name)), None


def head_names(directory: str, family: Family, config: ModelConfig, head_class: HeadClass | None = None) -> set[str]:
    """Returns the stored names of the parameters of heads that `read` returns, without reading them.

    Args:
      directory: see `read` for this and the following arguments.
      family: the family of the model.
      config: configuration of the model.
      head_class: class of the directory if it has the head of a downstream task.
    """
    source = StoredTensors(directory, family)
    heads = [mapping for mapping in _mappings(family, config, head_class) if mapping.name.startswith(OBJECTIVE)]
    return {mapping.name for mapping in heads if head_class is not None or source.has(mapping.hf_name)}


def _mappings(family: Family, config: ModelConfig, head_class: HeadClass | None) -> list[TensorMapping]:
    """Returns the mappings of the model and its heads: the pretraining heads, or the head of a class."""
    table = family.table(config)
    if head_class is None:
        return table
    return [mapping for mapping in table if mapping.name.startswith(MODEL)] + list(head_class.table)


def write(
    family: Family, config: ModelConfig, leaves: Mapping[str, Any], head_class: HeadClass | None = None
) -> dict[str, Float[np.ndarray, "..."]]:
    """Converts parameters to Hugging Face tensors; gradients and other trees of the same structure work too.

    Args:
      family: the family of the model.
      config: configuration of the model.
      leaves: stored name -> array. Layers are stacked.
      head_class: class to write if there is the head of a downstream task. The kernel of the logits is omitted then.

    Returns:
      Hugging Face name -> float32 array.

    Raises:
      UserError: the family's table does not have one of the names.
    """
    parts: dict[str, dict[int, np.ndarray]] = {}
    mappings: dict[str, TensorMapping] = {}
    for hf_name, mapping, array in _mapped(family, config, leaves, head_class):
        parts.setdefault(hf_name, {})[mapping.part[0]] = mapping.to_hf(np.asarray(array, np.float32))
        mappings[hf_name] = mapping
    return {
        hf_name: mappings[hf_name].concatenate([by_index[k] for k in sorted(by_index)])
        for hf_name, by_index in parts.items()
    }


def layouts(
    family: Family, config: ModelConfig, leaves: Mapping[str, Any], head_class: HeadClass | None = None
) -> dict[str, Layout]:
    """Returns Hugging Face name -> layout of each tensor that `write` returns."""
    return {hf_name: mapping.layout for hf_name, mapping, _ in _mapped(family, config, leaves, head_class)}


def _mapped(
    family: Family, config: ModelConfig, leaves: Mapping[str, Any], head_class: HeadClass | None
) -> Iterator[tuple[str, TensorMapping, Any]]:
    """Yields the Hugging Face name of each parameter of each layer, its mapping, and its value; see `write`."""
    table = {mapping.name: mapping for mapping in _mappings(family, config, head_class)}
    if unknown := sorted(set(leaves) - set(table)):
        model_type = family.config_to_json(config, [])["model_type"]
        raise UserError(
            f"parameter {unknown[0]!r}: not supported by transformers' {model_type}. Convert the model without its "
            "heads (HEADS=none)."
        )
    for name, leaf in leaves.items():
        if head_class is not None and name == LOGITS and not head_class.has_logits:
            continue
        mapping = table[name]
        layers = enumerate(leaf, mapping.first_layer) if "{i}" in mapping.hf_name else [(0, leaf)]
        for i, array in layers:
            hf_name = mapping.hf_name.format(i=i)
            if head_class is not None and name.startswith(MODEL):
                hf_name = head_class.model_name(hf_name)
            yield hf_name, mapping, array


def shapes(config: ModelConfig) -> dict[str, tuple[tuple[int, ...], int | None]]:
    """Returns stored name -> (shape of one layer, number of layers); None for parameters outside of stacks."""
    model = build.stacked_shapes(config)
    axes = parameters.logical_axes(model)
    found = {}
    for name, leaf in parameters.named_leaves(model).items():
        stacked = parameters.LAYERS in axes[name]
        found[MODEL + name] = (tuple(leaf.shape[1:]), leaf.shape[0]) if stacked else (tuple(leaf.shape), None)
    return found
