"""Reads and writes `weights.hdf5` and `options.json` of the published ELMo models (bilm-tf, AllenNLP).

The files have neither the softmax over words nor its vocabulary. Their table of characters lacks the row of padding,
which is 0 and which no state depends on. The kernel of a cell has the rows of its input before those of its last
output, and its columns are the gates i, j, f, o, as here; 1 is added to f when the cell runs, and not stored.
"""

import io
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import logging
from jaxtyping import Float

from t5x_like import limits, parameters, paths
from t5x_like.errors import UserError
from t5x_like.interop import fields, hdf5_files, json_files
from t5x_like.interop.formats import Format
from t5x_like.interop.registry import file_in_errors
from t5x_like.models.elmo import DIRECTIONS, ElmoConfig
from t5x_like.objectives.bidirectional_lm import BidirectionalLM

OPTIONS, WEIGHTS = "options.json", "weights.hdf5"
_ENCODER, _MODEL = "character_encoder", "model/"
# Bytes, the special characters and the padding of words; the id of the padding of rows is not stored.
_CHARACTERS = 261
_VOCAB_SIZE = 793471
# Numbers of layers in options.json.
_LAYERS = ("char_cnn.n_highway", "lstm.n_layers")


def is_input(path: str) -> bool:
    """Returns whether a path is a directory with both files, whose names may have a common prefix."""
    return paths.find_with_prefix(path, (OPTIONS, WEIGHTS)) is not None


def read(path: str) -> tuple[ElmoConfig, dict[str, Float[np.ndarray, "..."]], tuple[type, dict[str, Any]]]:
    """Reads the model of a directory; see `Format.read`.

    Args:
      path: the directory, local or in a bucket.

    Raises:
      UserError: a file is invalid, the model is not supported, or an array is missing, unexpected or misshapen.
    """
    options_name, weights_name = paths.find_with_prefix(path, (OPTIONS, WEIGHTS))
    options = json_files.read(file := paths.join(path, options_name))
    with file_in_errors(file):
        config = config_from_options(options)
        characters = _size(options, "char_cnn.max_characters_per_token", 50)
    leaves, shapes = {}, parameters.named_leaves(jax.eval_shape(config.make, jax.random.key(0)))
    contents = paths.read_bytes(weights := paths.join(path, weights_name))
    claimed = np.dtype(np.float16).itemsize * sum(math.prod(leaf.shape) for leaf in shapes.values())
    limits.check_expansion(f"{weights}, {OPTIONS}", claimed, len(contents))
    expected = {name: array.shape for name, array in _arrays(config, _zeros(shapes))}
    stored = hdf5_files.read(weights, contents, expected, OPTIONS)
    for name, leaf in shapes.items():
        leaves[_MODEL + name] = _parameter(config, name, stored).astype(np.float32).reshape(leaf.shape)
    return config, leaves, (BidirectionalLM, {"max_characters": characters})


def write(config: ElmoConfig, leaves: Mapping[str, Any], path: str) -> None:
    """Writes the model of a run; see `Format.write`.

    Args:
      config: configuration of the model.
      leaves: its parameters by stored name, and those of heads, which are left out.
      path: the directory, local or in a bucket.

    Raises:
      UserError: the format cannot hold the model.
    """
    h5py = hdf5_files.h5py(path)
    if heads := sorted({name.split("/")[1] for name in leaves if not name.startswith(_MODEL)}):
        logging.warning("%s has no heads: written without %s", WEIGHTS, ", ".join(heads))
    model = {name.removeprefix(_MODEL): np.asarray(x, np.float32) for name, x in leaves.items()}
    options, contents = json.dumps(options_from_config(config), indent=2) + "\n", io.BytesIO()
    with h5py.File(contents, "w") as file:
        for name, array in _arrays(config, model):
            file.create_dataset(name, data=array)
    paths.write_atomic(paths.join(path, WEIGHTS), contents.getvalue())
    paths.write_atomic(paths.join(path, OPTIONS), options)


def config_from_options(options: Mapping[str, Any]) -> ElmoConfig:
    """Returns the configuration that the contents of options.json describe.

    Raises:
      UserError: a key is missing, or describes a model that is not ELMo's.
    """
    for name, value in (("bidirectional", True), ("char_cnn.activation", "relu")):
        if (found := _field(options, name, value)) != value:
            raise UserError(f"{name}={found!r}: not supported. Give a model with {value!r}.")
    if (characters := _field(options, "char_cnn.n_characters")) not in (_CHARACTERS, _CHARACTERS + 1):
        raise UserError(
            f"char_cnn.n_characters={characters!r}: must be {_CHARACTERS}, or {_CHARACTERS + 1} with padding"
        )
    filters = _filters(options)
    size = _size(options, "lstm.projection_dim")
    if size == sum(number for _, number in filters):
        raise UserError(f"lstm.projection_dim={size}: the number of filters, so that words have no projection")
    return ElmoConfig(
        vocab_size=_size(options, "n_tokens_vocab", _VOCAB_SIZE),
        num_characters=_CHARACTERS + 1,
        character_dim=_size(options, "char_cnn.embedding.dim"),
        filters=filters,
        highway_layers=_size(options, "char_cnn.n_highway", 0),
        cell_dim=_size(options, "lstm.dim"),
        projection_dim=size,
        num_layers=_size(options, "lstm.n_layers", 1),
        cell_clip=_number(options, "lstm.cell_clip", None),
        projection_clip=_number(options, "lstm.proj_clip", None),
        residual=bool(_field(options, "lstm.use_skip_connections", False)),
        dropout_rate=_number(options, "dropout", 0.0),
    )


def options_from_config(config: ElmoConfig) -> dict[str, Any]:
    """Returns the contents of options.json for a configuration.

    Raises:
      UserError: the format cannot hold the model.
    """
    if config.num_characters != _CHARACTERS + 1:
        raise UserError(
            f"ElmoConfig.num_characters={config.num_characters}: {OPTIONS} has {_CHARACTERS + 1} characters"
        )
    if config.projection_dim >= config.cell_dim and config.projection_dim != config.cell_dim:
        raise UserError(
            f"ElmoConfig.projection_dim={config.projection_dim}: larger than cell_dim={config.cell_dim}, which bilm-tf "
            "does not read. Nothing was written."
        )
    lstm = {
        "dim": config.cell_dim,
        "projection_dim": config.projection_dim,
        "n_layers": config.num_layers,
        "cell_clip": config.cell_clip,
        "proj_clip": config.projection_clip,
        "use_skip_connections": config.residual,
    }
    return {
        "bidirectional": True,
        "char_cnn": {
            "activation": "relu",
            "embedding": {"dim": config.character_dim},
            "filters": [list(pair) for pair in config.filters],
            "max_characters_per_token": 50,
            "n_characters": config.num_characters,
            "n_highway": config.highway_layers,
        },
        "dropout": config.dropout_rate,
        "lstm": {name: value for name, value in lstm.items() if value is not None},
        "n_tokens_vocab": config.vocab_size,
    }


_REQUIRED = object()


def _field(options: Mapping[str, Any], name: str, default: Any = _REQUIRED) -> Any:
    """Returns the value of a key of options.json; `lstm.dim` is the key `dim` of the value of `lstm`."""
    found: Any = options
    for key in name.split("."):
        if not isinstance(found, Mapping) or key not in found:
            if default is _REQUIRED:
                raise UserError(f"{name}: missing. Give the file that was published with the weights.")
            return default
        found = found[key]
    return found


def _size(options: Mapping[str, Any], name: str, default: Any = _REQUIRED) -> int:
    """Returns a positive integer, or the default; see `_field`."""
    value, largest = _field(options, name, default), limits.UNROLLED_LAYERS if name in _LAYERS else None
    return value if type(value) is type(default) and value == default else fields.size({name: value}, name, largest)


def _number(options: Mapping[str, Any], name: str, default: float | None) -> float | None:
    """Returns a number, or the default; see `_field`."""
    value = _field(options, name, default)
    return value if value == default else fields.number({name: value}, name)


def _filters(options: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Returns pairs of the width and the number of filters."""
    pairs = _field(options, name := "char_cnn.filters")
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise UserError(f"{name}={pairs!r:.80}: must be a list of pairs, such as [[1, 32], [2, 32]]")
    if len(pairs) > limits.UNROLLED_LAYERS:
        raise UserError(f"{name}: {len(pairs):,} pairs, more than {limits.UNROLLED_LAYERS}")
    return tuple((fields.size({name: width}, name), fields.size({name: number}, name)) for width, number in pairs)


def _zeros(shapes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns arrays of zeros that take no memory."""
    return {name: np.broadcast_to(np.float32(0), leaf.shape) for name, leaf in shapes.items()}


def _plain_names(config: ElmoConfig) -> dict[str, str]:
    """Returns stored name of a parameter -> name of the array with the same values, in another shape or not."""
    names = {f"{_ENCODER}/projection/{kind}": f"CNN_proj/{letter}_proj" for kind, letter in _LETTERS.items()}
    for number, (width, _) in enumerate(config.filters):
        for kind, letter in _LETTERS.items():
            names[f"{_ENCODER}/convolutions/width_{width}/{kind}"] = f"CNN/{letter}_cnn_{number}"
    for number in range(config.highway_layers):
        for part, name in (("gate", "carry"), ("transform", "transform")):
            for kind, letter in _LETTERS.items():
                names[f"{_ENCODER}/highway/layer_{number}/{part}/{kind}"] = f"CNN_high_{number}/{letter}_{name}"
    for layer, cell in _cells(config):
        names[f"{layer}/inputs/bias"] = f"{cell}/B"
        if config.projection_dim != config.cell_dim:
            names[f"{layer}/outputs/kernel"] = f"{cell}/W_P_0"
    return names


_LETTERS = {"kernel": "W", "bias": "b"}


def _cells(config: ElmoConfig) -> Iterator[tuple[str, str]]:
    """Yields the name of each layer, here and in the file."""
    for direction, name in enumerate(DIRECTIONS):
        for layer in range(config.num_layers):
            yield f"encoder/{name}/layer_{layer}", f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"


def _arrays(config: ElmoConfig, model: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays of the file."""
    yield "char_embed", model[f"{_ENCODER}/embedding"][1:]
    for ours, theirs in _plain_names(config).items():
        array = model[ours]
        if theirs.startswith("CNN/W"):
            array = array[np.newaxis]
        yield theirs, array.reshape(-1) if ours.endswith("inputs/bias") else array
    for layer, cell in _cells(config):
        kernels = [model[f"{layer}/{part}/kernel"].reshape(config.projection_dim, -1) for part in _PARTS]
        yield f"{cell}/W_0", np.concatenate(kernels)


_PARTS = ("inputs", "recurrent")


def _parameter(config: ElmoConfig, name: str, stored: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns a parameter by its stored name, perhaps with its dimensions joined."""
    if name == f"{_ENCODER}/embedding":
        return np.pad(stored["char_embed"], ((1, 0), (0, 0)))
    if (plain := _plain_names(config).get(name)) is not None:
        return stored[plain]
    layer, part, _ = name.rsplit("/", 2)
    kernel = stored[f"{dict(_cells(config))[layer]}/W_0"]
    return np.split(kernel, len(_PARTS))[_PARTS.index(part)]


FORMAT = Format(ElmoConfig, is_input, read, write)
