"""Reads the TensorFlow 1 checkpoints in which BERT, ALBERT, BigBird, ELECTRA and XLNet were published.

The names of the variables follow from the Hugging Face names in the table of a family, by the rules of its
`tensor_mapping.TensorFlowFormat`. Kernels are `[inputs, outputs]`, tables and the classifier of pairs of segments as in
transformers. The state of the optimizer is not read. `etc_checkpoints` reads and writes checkpoints of ETC, by
functions of this module.
"""

import contextlib
import dataclasses
import fnmatch
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Float

from t5x_like import parameters, paths
from t5x_like.errors import UserError
from t5x_like.interop import json_files, tables
from t5x_like.interop.registry import families, file_in_errors, find_family
from t5x_like.interop.tensor_mapping import Family, TensorMapping
from t5x_like.models import build, networks
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Objective

# Rules of all families that turn the names of transformers into names of variables, with dots instead of slashes.
_NAMES = (
    (r"(\.encoder\.layer)\.", r"\1_"),
    (r"(LayerNorm\w*)\.weight$", r"\1.gamma"),
    (r"(LayerNorm\w*)\.bias$", r"\1.beta"),
    (r"(_embeddings)\.weight$", r"\1"),
    (r"\.weight$", ".kernel"),
)
_OPTIMIZER = re.compile(r"global_step|.*/(adam|lamb)_[mv](_\d+)?|.*/Adam(_\d+)?|beta[12]_power|good_steps|loss_scale")
# The encoder of ETC and the file with its sizes; see `etc_checkpoints`.
ETC_ENCODER, ETC_CONFIG = "etc_document_bert/", "etc_config.json"
# Where transformers' own config.json has the sizes, as some republished checkpoints do.
_HF_CONFIG = "config.json"


@dataclasses.dataclass(frozen=True)
class Imported:
    """What a checkpoint has.

    Attributes:
      config: configuration of the model.
      leaves: stored name (`model/…`, and `objective/…` for heads and networks) -> float32 array. Layers are stacked.
      objective: class and settings of the objective whose networks the checkpoint has; None for a model with heads.
    """

    config: ModelConfig
    leaves: Mapping[str, Float[np.ndarray, "..."]]
    objective: tuple[type[Objective], Mapping[str, Any]] | None


def read(prefix: str, config: ModelConfig | None) -> Imported:
    """Reads a checkpoint.

    Args:
      prefix: path of its files without `.index`.
      config: configuration of the model; None to read it from a file next to the checkpoint.

    Returns:
      The model, with the heads and networks that the checkpoint has.

    Raises:
      UserError: TensorFlow is not installed, the checkpoint is damaged or not of a known family, its sizes are not
        known, or a variable is missing, unexpected or of the wrong shape.
    """
    variables = Variables(prefix)
    family = _family(variables)
    variables.rename(family.tensorflow.renamed)
    config = _config(prefix, family) if config is None else config
    if type(config) is not family.config_class:
        raise UserError(
            f"{prefix}: has a {family.config_class.__name__}, but the model is a {type(config).__name__}. Give a model "
            "of the same family."
        )
    objective, settings = family.tensorflow.objective(config, variables.shapes)
    expected = _sources(family, config, objective(**settings))
    present = {_group(name) for name, source in expected.items() if any(each in variables for each in source.names)}
    sources = {name: source for name, source in expected.items() if _group(name) in {"model", *present}}
    zeros = {
        name: np.zeros(source.shape, np.float32)
        for name, source in sources.items()
        if name in family.tensorflow.optional and not any(each in variables for each in source.names)
    }
    for name in zeros:
        logging.warning("%s: has no %s: it is 0", prefix, sources.pop(name).pattern)
    check(variables, sources, config)
    logging.info("%s: TensorFlow checkpoint, reading %d parameters", prefix, len(sources))
    leaves = zeros | {name: source.read(variables) for name, source in sources.items()}
    is_complete = family.tensorflow.has_networks and leaves.keys() == expected.keys()
    return Imported(config, leaves, (objective, settings) if is_complete else None)


def tokenizer(prefix: str, config: ModelConfig) -> dict[str, bytes]:
    """Returns the files of the tokenizer next to a checkpoint by name, empty if there are none.

    A SentencePiece model gets the name that it has in transformers.

    Args:
      prefix: path of the checkpoint.
      config: configuration of the model.
    """
    found, family = directory(prefix), find_family(config)
    names = paths.listdir(found)
    models = [name for name in names if name.endswith(".model")]
    if family is not None and family.sentencepiece and len(models) == 1:
        return {family.sentencepiece: paths.read_bytes(paths.join(found, models[0]))}
    texts = [name for name in names if name == "vocab.txt"] or fnmatch.filter(names, "vocab*.txt")
    if len(texts) == 1:
        return {"vocab.txt": paths.read_bytes(paths.join(found, texts[0]))}
    logging.warning(
        "%s: not one vocab*.txt, so the run has no tokenizer. Give VOCABULARY_PATH where it is used.", found
    )
    return {}


def write(prefix: str, variables: Mapping[str, Float[np.ndarray, "..."]]) -> None:
    """Writes a checkpoint, which TensorFlow 1 and 2 read.

    Args:
      prefix: path of its files without `.index`.
      variables: name -> value.

    Raises:
      UserError: TensorFlow is not installed.
    """
    tf, names = _tensorflow(f"{prefix}: writing"), sorted(variables)
    with contextlib.suppress(RuntimeError):  # raised if TensorFlow already uses its devices
        tf.config.set_visible_devices([], "GPU")
    values = [tf.constant(np.asarray(variables[name], np.float32)) for name in names]
    with tempfile.TemporaryDirectory() as temporary:
        local = os.path.join(temporary, prefix.rpartition("/")[2])
        tf.raw_ops.SaveV2(prefix=local, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)
        for name in sorted(os.listdir(temporary)):  # the index comes last
            paths.write_atomic(paths.join(directory(prefix), name), paths.read_bytes(os.path.join(temporary, name)))


def _tensorflow(purpose: str) -> ModuleType:
    try:
        import tensorflow as tf
    except ModuleNotFoundError as error:
        raise UserError(
            f"{purpose} a TensorFlow checkpoint needs TensorFlow, which is not installed. Run `pip install tensorflow`."
        ) from error
    return tf


class Variables:
    """The variables of a checkpoint, without the state of the optimizer.

    Args:
      prefix: path of the files without `.index`.

    Attributes:
      shapes: name -> shape.
    """

    def __init__(self, prefix: str):
        tf = _tensorflow(f"{prefix}: reading")
        # The reader raises OpError, or the built-in error for its status code.
        self.prefix, self._errors = prefix, (tf.errors.OpError, ValueError, RuntimeError, LookupError)
        try:
            self._reader = tf.train.load_checkpoint(prefix)
        except self._errors as error:
            raise self._damaged(error) from error
        found = self._reader.get_variable_to_shape_map()
        self.shapes = {name: tuple(shape) for name, shape in sorted(found.items()) if not _OPTIMIZER.fullmatch(name)}
        self._stored = {name: name for name in self.shapes}

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def rename(self, rules: Sequence[tuple[str, str]]) -> None:
        """Renames variables by (regex, replacement) pairs; see `TensorFlowFormat.renamed`."""
        for pattern, replacement in rules:
            self.shapes = {re.sub(pattern, replacement, name): shape for name, shape in self.shapes.items()}
            self._stored = {re.sub(pattern, replacement, name): stored for name, stored in self._stored.items()}

    def keep(self, prefix: str) -> None:
        """Leaves out variables whose names do not begin with a prefix, and logs their names."""
        if others := [name for name in self.shapes if not name.startswith(prefix)]:
            logging.info("%s: left out: %s", self.prefix, ", ".join(others))
        self.shapes = {name: shape for name, shape in self.shapes.items() if name.startswith(prefix)}

    def read(self, name: str) -> Float[np.ndarray, "..."]:
        """Reads a variable as float32.

        Raises:
          UserError: a file is missing or damaged.
        """
        try:
            return np.asarray(self._reader.get_tensor(self._stored[name]), np.float32)
        except self._errors as error:
            raise self._damaged(error, f"variable {name!r}: ") from error

    def _damaged(self, error: Exception, subject: str = "") -> UserError:
        reason = str(error).splitlines()[0]
        return UserError(
            f"{self.prefix}: {subject}cannot be read ({reason}). Download the .index and all .data files again."
        )


@dataclasses.dataclass(frozen=True)
class Source:
    """The variables of one parameter.

    Attributes:
      mapping: how the parameter is stored, by its Hugging Face name.
      pattern: name of the variable; `{i}` stands for the index of the layer.
      shape: shape of the parameter, of one layer if it is stacked.
      layers: number of layers; None outside of stacks.
    """

    mapping: TensorMapping
    pattern: str
    shape: tuple[int, ...]
    layers: int | None

    @property
    def names(self) -> list[str]:
        """Names of the variables."""
        return [self.pattern] if self.layers is None else [self.pattern.format(i=i) for i in range(self.layers)]

    def read(self, variables: Variables) -> Float[np.ndarray, "..."]:
        """Reads the parameter."""
        found = [self.mapping.from_hf(variables.read(name), self.shape) for name in self.names]
        return found[0] if self.layers is None else np.stack(found)


def _sources(family: Family, config: ModelConfig, objective: Objective) -> dict[str, Source]:
    """Returns stored name -> variables, of the model and of all heads and networks of an objective."""
    config = dataclasses.replace(config, scan_layers=True)
    mappings = {mapping.name: mapping for mapping in family.table(config)}
    for network, spec in networks.specs(objective, config).items():
        if network != networks.MODEL:
            for mapping in family.table(spec.config):
                name = mapping.name.replace(tables.MODEL, f"{tables.OBJECTIVE}{network}/", 1)
                hf_name = mapping.hf_name.replace(family.prefix, f"{network}.", 1)
                mappings.setdefault(name, dataclasses.replace(mapping, name=name, hf_name=hf_name))
    shapes = build.params_shapes(config, objective)
    axes, found = parameters.logical_axes(shapes), {}
    for name, leaf in parameters.named_leaves(shapes).items():
        is_stacked = parameters.LAYERS in axes[name]
        pattern = _variable(mappings[name].hf_name, family)
        # A kernel is [inputs, outputs]; other matrices have the layout of transformers.
        is_kernel = pattern.endswith("/kernel") and mappings[name].layout == "linear"
        mapping = dataclasses.replace(mappings[name], layout="conv1d") if is_kernel else mappings[name]
        is_stacked = is_stacked and "{i}" in pattern  # else one variable has all layers, such as XLNet's biases
        shape = leaf.shape[1:] if is_stacked else leaf.shape
        found[name] = Source(mapping, pattern, tuple(shape), leaf.shape[0] if is_stacked else None)
    return found


def _variable(hf_name: str, family: Family) -> str:
    """Returns the name of a variable for a Hugging Face name."""
    for pattern, replacement in (*family.tensorflow.names, *_NAMES):
        hf_name = re.sub(pattern, replacement, hf_name)
    return hf_name.replace(".", "/")


def _group(name: str) -> str:
    """Returns what a checkpoint has completely or not at all: the model, a network, a head, or the pooler of a head."""
    parts = name.split("/")
    if f"{parts[0]}/" == tables.MODEL:
        return parts[0]
    return "/".join(parts[: 3 if parts[2] == "pooler" else 2])


def check(variables: Variables, sources: Mapping[str, Source], config: ModelConfig) -> None:
    """Checks names and shapes of all variables.

    Raises:
      UserError: a variable is missing, of the wrong shape, or unexpected.
    """
    expected = {
        name: (parameter, source.mapping.hf_shape(source.shape))
        for parameter, source in sources.items()
        for name in source.names
    }
    for name, (parameter, shape) in expected.items():
        if variables.shapes.get(name) != shape:
            problem = f"has shape {variables.shapes[name]}" if name in variables else "is missing"
            raise UserError(
                f"{variables.prefix}: variable {name!r} {problem}, but this {type(config).__name__} needs shape "
                f"{shape} for {parameter}. Give the configuration of this checkpoint, or download it again."
            )
    if unexpected := [name for name in variables.shapes if name not in expected]:
        raise UserError(
            f"{variables.prefix}: unexpected variables for this {type(config).__name__}: {unexpected[0]!r} "
            f"({len(unexpected)} in total). Give the configuration of this checkpoint. Checkpoints with a head of a "
            "downstream task are not supported."
        )


def _family(variables: Variables) -> Family:
    """Returns the family of a checkpoint.

    Raises:
      UserError: the checkpoint is not of a known family.
    """
    known = {family.tensorflow.markers: family for family in families() if family.tensorflow is not None}
    for markers, family in known.items():
        if all(marker in variables for marker in markers):
            return family
    if any(name.startswith(ETC_ENCODER) for name in variables.shapes):
        raise UserError(
            f"{variables.prefix}: a checkpoint of ETC without its sizes. Put its {ETC_CONFIG} into the same directory."
        )
    raise UserError(
        f"{variables.prefix}: not a checkpoint of BERT, ALBERT, BigBird, ELECTRA, ETC or XLNet, of whose "
        f"variables {', '.join(markers[0] for markers in known)} none was found. Convert another model with its own "
        "tools."
    )


def _config(prefix: str, family: Family) -> ModelConfig:
    """Reads the configuration next to a checkpoint.

    Raises:
      UserError: the file is missing or invalid.
    """
    found_in, (model_type, *_) = directory(prefix), family.model_types
    names = (*([family.tensorflow.config_file] if family.tensorflow.config_file else []), _HF_CONFIG)
    for name in names:
        if paths.is_file(file := paths.join(found_in, name)):
            found = json_files.read(file)
            if name != _HF_CONFIG:
                found = {family.tensorflow.config_keys.get(key, key): value for key, value in found.items()}
                # The released code computes the tanh approximation.
                found |= {key: "gelu_new" for key, value in found.items() if value == "gelu"}
            with file_in_errors(file):
                return family.config_from_json({"model_type": model_type, **found})
    model_files = family.config_class.__module__.rpartition(".")[2]
    raise UserError(
        f"{prefix}: its sizes are not known: {' and '.join(names)} not found. Give the model of the checkpoint, such "
        f"as --gin_file=models/{model_files}/base.gin"
    )


def directory(prefix: str) -> str:
    """Returns the directory of a checkpoint."""
    return prefix.rpartition("/")[0] or "."
