"""Weights that `convert` reads: the formats of other libraries, and runs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from t5x_like import convert_vectors, interop, partitioning, paths
from t5x_like.checkpoints import checkpoint_choice, weight_files
from t5x_like.config.description import describe, usual_objective
from t5x_like.conversion.settings import Source
from t5x_like.errors import UserError
from t5x_like.interop import (
    adapter_files,
    generation,
    json_files,
    long_rows,
    quantized,
    registry,
    t5x,
    tensorflow_checkpoints,
)
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.formats import Format
from t5x_like.models import networks
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import MODEL
from t5x_like.objectives.base import Objective
from t5x_like.runtime import run_files
from t5x_like.stored import weight_source
from t5x_like.stored.network_weights import RunModel


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights to convert.

    Attributes:
      model: Configuration of the model.
      leaves: Stored name, `model/…` or `objective/…` -> array. Layers are stacked.
      config: Text of the config.gin of a run with these weights; None for the weights of a run, which has its own.
      words: The vocabulary file of word vectors; None for other weights.
      objective: The objective of a run that predicts from the model, if config.gin describes it.
    """

    model: ModelConfig
    leaves: Mapping[str, Any]
    config: str | None = None
    words: bytes | None = None
    objective: Objective | None = None


def read_other(path: str, source: Source, *, heads: str = "all", long: int | None = None) -> Weights | None:
    """Reads weights of another library.

    Args:
      path: The weights.
      source: How they are read.
      heads: `none` for the bare model.
      long: Number of positions of a Longformer to make of a RoBERTa.

    Returns:
      The weights; None if they are not of another library, but of a run.

    Raises:
      UserError: The files are invalid, or do not describe their model and none is given.
    """
    if convert_vectors.is_input(path):
        return Weights(*convert_vectors.read(path, source.model))
    if (published := registry.find_format(path)) is not None:
        return _read_published(published, path)
    if weight_files.is_huggingface(path):
        return _read_huggingface(path, source.model, heads, long)
    if weight_files.is_adapter(path):
        return _read_adapters(path, source, heads)
    if (index := weight_files.find_t5x(path)) is not None:
        return _read_t5x(index, path, source.model)
    if (prefix := weight_files.find_tensorflow(path)) is not None:
        if (published := registry.find_format(prefix)) is not None:
            return _read_published(published, prefix)
        return _read_tensorflow(prefix, source.model, heads)
    return None


def _read_published(published: Format, path: str) -> Weights:
    model, leaves, objective = published.read(path)
    return Weights(model, leaves, describe(model, objective=objective))


def _read_huggingface(path: str, model: ModelConfig | None, heads: str, long: int | None) -> Weights:
    stored = interop.config_from_huggingface(path)
    config = model or stored
    leaves = select(interop.read(path, config), heads)
    config = dataclasses.replace(
        config, vocab_size=stored.vocab_size, special_tokens=config.special_tokens or stored.special_tokens
    )
    _log_class(path, config, leaves)
    if long is not None:
        config, leaves = long_rows.lengthen(config, leaves, long)
    head = interop.task_head(path) if heads != "none" else None
    return Weights(config, leaves, describe(config, head, usual_objective(config, path)))


def _read_adapters(path: str, source: Source, heads: str) -> Weights:
    """Reads a base model with the adapters of another library."""
    base = source.base_path or adapter_files.base(path)
    if base is None or not weight_files.is_huggingface(base):
        raise UserError(
            f"{path}: the base model {base!r} is not a Hugging Face directory with safetensors. Give its directory "
            "with --gin.BASE_PATH=…"
        )
    model = Base.read(base)
    adapters, added, head = adapter_files.read(path, model, source.lora)
    config = dataclasses.replace(model.config, adapters=adapters)
    described = describe(config, head if heads != "none" else None)
    return Weights(config, select(model.leaves, "none") | select(added, heads), described)


def _read_t5x(index: str, path: str, model: ModelConfig | None) -> Weights:
    if model is None:
        raise UserError(
            f"{path}: missing model: a T5X checkpoint does not describe it. Give the model of the checkpoint, such as "
            "--gin_file=models/t5_1_1/base.gin"
        )
    return Weights(model, t5x.read(index, model), describe(model))


def _read_tensorflow(prefix: str, model: ModelConfig | None, heads: str) -> Weights:
    found = tensorflow_checkpoints.read(prefix, model)
    objective = found.objective if heads != "none" else None
    return Weights(found.config, select(found.leaves, heads), describe(found.config, objective=objective))


def read_run(path: str, model: ModelConfig | None, network: str | None, averaged: bool) -> Weights:
    """Reads a network of a run, with its heads.

    Args:
      path: The run directory, or one of its checkpoints.
      model: Configuration of the model of the run; None for that of its config.gin.
      network: Name of the network; None for the model.
      averaged: Whether to read the averages of parameters, where the run has any.

    Raises:
      UserError: The model is neither given nor described, or the checkpoint or the network is not found.
    """
    has_config, objective = run_files.find_run(path) is not None, None
    if model is None:
        if checkpoint_choice.find_step(path) is None:
            raise UserError(weight_files.explain_missing(path))
        if not has_config:
            raise UserError(
                f"{path}: missing model. Give it with --gin_file=models/…, since no config.gin describes it."
            )
        model = RunModel.read(path).model
    if network is not None or has_config:
        run = RunModel(model, RunModel.read(path).objective)
        network = network or (MODEL if len(networks.specs(run.objective, model)) > 1 else None)
        objective = run.objective
        if network is not None:
            spec = networks.find(run.objective, model, network, path)
            model, objective = spec.config, objective if network == MODEL else spec.objective
    sharding = partitioning.Partitioner(rules="dp").replicated
    dtypes = quantized.dtypes(model)
    with weight_source.open_run(path, network=network, averaged=averaged) as weights:
        wanted = {
            name: jax.ShapeDtypeStruct(shape, dtypes.get(name, jnp.float32), sharding=sharding)
            for name, shape in weights.shapes.items()
        }
        return Weights(model, weights.read(wanted), objective=objective)


def select(leaves: Mapping[str, Any], heads: str) -> dict[str, Any]:
    """Returns the parameters of the model, and of its heads unless `heads` is `none`."""
    return {name: leaf for name, leaf in leaves.items() if heads != "none" or name.startswith(weight_source.MODEL)}


def check_finite(leaves: Mapping[str, Any], checkpoint_path: str, allow: bool) -> None:
    """Checks that all values are finite, or logs a warning with the tensors that are not.

    Args:
      leaves: Stored name -> array.
      checkpoint_path: Where they come from, for the message.
      allow: Whether to log a warning.

    Raises:
      UserError: Values are not finite, and `allow` is False.
    """
    counts = {name: np.size(leaf) - int(np.sum(np.isfinite(leaf))) for name, leaf in leaves.items()}
    counts = {name: count for name, count in counts.items() if count}
    if not counts:
        return
    shown = ", ".join(f"{name} ({count:,} of {np.size(leaves[name]):,})" for name, count in list(counts.items())[:5])
    problem = (
        f"{checkpoint_path}: {len(counts)} of {len(leaves)} tensors have values that are not finite: {shown}"
        f"{', …' if len(counts) > 5 else ''}"
    )
    if not allow:
        raise UserError(f"{problem}. Give an earlier checkpoint, or --allow_nonfinite to convert them.")
    logging.warning("%s", problem)


def _log_class(directory: str, config: ModelConfig, leaves: Mapping[str, Any]) -> None:
    """Logs that a bare model comes back as a language model, which has the same parameters."""
    stored = json_files.read(paths.join(directory, generation.CONFIG)).get("architectures") or []
    bare = [name for name in stored if name.endswith("Model")]
    try:
        exported = interop.exported_class(config, leaves)
    except UserError:  # transformers does not have the family, such as UniLM, so that nothing is exported
        return
    if bare and exported not in stored:
        logging.info(
            "%s: a %s is read as a language model with tied embeddings. Its export is a %s with the same parameters.",
            *(directory, bare[0], exported),
        )
