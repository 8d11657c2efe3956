"""Reads T5X checkpoints of T5 1.0 and 1.1 (Roberts et al. 2022, https://github.com/google-research/t5x).

T5X wrote four layouts over time. Each has an index that describes the tree of tensors:

* one msgpack file of flax.serialization that holds the arrays themselves;
* a directory with the msgpack file `checkpoint`, whose leaves are TensorStore specs of zarr arrays in the directory;
* the same with Orbax's placeholders, `PLACEHOLDER://target.encoder.…`, instead of specs;
* Orbax's current layout: a directory `state` with the JSON file `_METADATA` and zarr arrays, by default inside an
  OCDBT store.

The parameters are the subtree `target`. The remaining tensors, such as the optimizer's, are not read. A
checkpoint has no model configuration, so the caller provides it. Nothing is unpickled.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax.numpy as jnp
import numpy as np
import tensorstore
from absl import logging
from flax import serialization
from jaxtyping import Float

from t5x_like import paths
from t5x_like.errors import UserError
from t5x_like.interop import tables
from t5x_like.models.base import ModelConfig
from t5x_like.models.t5 import T5Config

_TARGET = "target"
_PLACEHOLDER = "PLACEHOLDER://"
_EMBEDDING = "token_embedder/embedding"
_RELPOS = "relpos_bias/rel_embedding"
# Block of a layer -> (T5X's name of the block, T5X's name of the norm before it).
_BLOCKS = {
    "encoder": {
        "attention": ("attention", "pre_attention_layer_norm"),
        "mlp": ("mlp", "pre_mlp_layer_norm"),
    },
    "decoder": {
        "self_attention": ("self_attention", "pre_self_attention_layer_norm"),
        "cross_attention": ("encoder_decoder_attention", "pre_cross_attention_layer_norm"),
        "mlp": ("mlp", "pre_mlp_layer_norm"),
    },
}
# The axis of the layers in the arrays of a scanned model, T5X's `param_scan_axis`.
_SCAN_AXIS = 1

# An array of a msgpack file, or an open array of TensorStore.
_Tensor: TypeAlias = np.ndarray | tensorstore.TensorStore
# Reads the values of a parameter.
_Load: TypeAlias = Callable[[], np.ndarray]
_Index = TypeVar("_Index")


def read(index: str, config: ModelConfig) -> dict[str, Float[np.ndarray, "..."]]:
    """Reads the parameters of a T5X checkpoint.

    Args:
      index: the index of the checkpoint, local or in a bucket: a msgpack file or Orbax's `_METADATA`.
      config: configuration of the model, a `T5Config`, which must have the sizes of the checkpoint.

    Returns:
      Stored name (`model/…`) -> float32 array. Layers are stacked.

    Raises:
      UserError: the checkpoint or the configuration is not of a T5, the checkpoint cannot be read, or a tensor is
        missing, unexpected or of the wrong shape.
    """
    loads = _loads(index, config)
    logging.info("%s: T5X checkpoint, reading %d parameters, ignoring the optimizer state", index, len(loads))
    return {name: load() for name, load in loads.items()}


def check(index: str, config: ModelConfig) -> None:
    """Checks names and shapes of all tensors of a T5X checkpoint.

    Raises:
      UserError: as `read`.
    """
    _loads(index, config)


def _loads(index: str, config: ModelConfig) -> dict[str, _Load]:
    """Returns stored name -> function that reads the parameter, after a check of all names and shapes."""
    if type(config) is not T5Config:
        raise UserError(
            f"{index}: a T5X checkpoint of T5 cannot be read into a {type(config).__name__}. Give a T5 model, such as "
            "--gin_file=models/t5_1_1/base.gin"
        )
    source = _Source(index, _tensors(index))
    leaves = {}
    for name, (shape, layers) in tables.shapes(config).items():
        t5x_name = _t5x_name(name)
        if layers is not None:
            leaves[name] = source.layers(t5x_name, shape, layers)
        elif t5x_name.endswith(_RELPOS):
            leaves[name] = source.relpos(t5x_name, shape, _num_layers(config, t5x_name))
        else:
            leaves[name] = source.tensor(t5x_name, shape)
    source.check()
    return leaves


def _t5x_name(name: str) -> str:
    """Converts a stored name to T5X's name. `{layers}` stands for the directory of one layer or of all layers.

    For example, `model/encoder/layers/mlp/wo/kernel` becomes `encoder/{layers}/mlp/wo/kernel`.
    """
    stack, _, rest = name.removeprefix(tables.MODEL).partition("/")
    if stack == "logits":
        return f"decoder/logits_dense/{rest}"
    if stack not in _BLOCKS:
        return f"{stack}/{rest}"
    if not rest.startswith("layers/"):
        return {"relative_bias/table": f"{stack}/{_RELPOS}", "norm/scale": f"{stack}/{stack}_norm/scale"}[rest]
    block, _, tensor = rest.removeprefix("layers/").partition("/")
    t5x_block, t5x_norm = _BLOCKS[stack][block.removesuffix("_norm")]
    return f"{stack}/{{layers}}/{t5x_norm if block.endswith('_norm') else t5x_block}/{tensor}"


def _num_layers(config: T5Config, t5x_name: str) -> int:
    return config.encoder_layers if t5x_name.startswith("encoder/") else config.decoder_layers


class _Source:
    """The tensors of a checkpoint by T5X's name.

    The methods check shapes at once and return functions that read the values, so that a wrong checkpoint is refused
    before anything large is read. Missing and unexpected tensors are collected and reported together by `check`.
    """

    def __init__(self, index: str, tensors: Mapping[str, _Tensor]):
        self._index, self._tensors = index, tensors
        if _EMBEDDING not in tensors:
            raise UserError(
                f"{index}: not a T5X checkpoint of T5: {_EMBEDDING!r} not found among its {len(tensors)} parameters. "
                "Only T5 1.0 and 1.1 with encoder and decoder are supported."
            )
        self._found: set[str] = set()
        self._missing: list[str] = []
        # Name of the directory with all layers of a scanned stack. T5X's own scanned T5 repeats the name of the stack.
        self._scanned = {
            stack: next(
                (name for name in (stack, "layers") if any(key.startswith(f"{stack}/{name}/") for key in tensors)), None
            )
            for stack in _BLOCKS
        }

    def tensor(self, name: str, shape: tuple[int, ...]) -> _Load:
        """Finds a tensor that is not in a layer, or that belongs to one layer."""
        self._find(name, [shape, _merge_heads(name, shape)])
        return lambda: self._values([name])[0].reshape(shape)

    def layers(self, name: str, shape: tuple[int, ...], layers: int) -> _Load:
        """Finds a tensor of all layers of a stack. The function stacks them on the first axis."""
        directory = self._scanned[name.partition("/")[0]]
        if directory is None:
            names = [name.format(layers=f"layers_{i}") for i in range(layers)]
            for layer_name in names:
                self._find(layer_name, [shape, _merge_heads(name, shape)])
            return lambda: np.stack(self._values(names)).reshape(layers, *shape)
        name = name.format(layers=directory)
        self._find(
            name,
            [_insert(shape, layers), _insert(_merge_heads(name, shape), layers)],
            f", with {layers} layers on axis {_SCAN_AXIS}",
        )
        return lambda: np.moveaxis(self._values([name])[0], _SCAN_AXIS, 0).reshape(layers, *shape)

    def relpos(self, name: str, shape: tuple[int, ...], layers: int) -> _Load:
        """Finds the position biases of a stack.

        T5X's `scalable_t5` has biases per layer. Its checkpoints can only be read if these are equal.
        """
        stack = name.partition("/")[0]
        per_layer = f"{stack}/{{layers}}/{_RELPOS}"
        first = per_layer.format(layers=self._scanned[stack] or "layers_0")
        if name in self._tensors or first not in self._tensors:
            return self.tensor(name, shape)
        load = self.layers(per_layer, shape, layers)

        def load_shared() -> np.ndarray:
            biases = load()
            if np.any(biases != biases[0]):
                raise UserError(
                    f"{self._index}: tensor {first!r}: each layer has its own position biases, as in T5X's scalable_t5 "
                    "and in umT5. T5Config shares them between the layers of a stack. This checkpoint is not supported."
                )
            return biases[0]

        return load_shared

    def check(self) -> None:
        """Raises a UserError if tensors are missing or unexpected."""
        unexpected = sorted(set(self._tensors) - self._found)
        problems = [
            f"{len(names)} {problem} tensors, such as {names[0]!r}"
            for problem, names in (("missing", self._missing), ("unexpected", unexpected))
            if names
        ]
        if problems:
            raise UserError(
                f"{self._index}: {' and '.join(problems)}, for this T5Config. Give the model file of the checkpoint, "
                "such as --gin_file=models/t5_1_1/base.gin, or one of models/t5_1_0"
            )

    def _find(self, name: str, shapes: Sequence[tuple[int, ...]], description: str = "") -> None:
        """Checks a tensor. The last of the shapes is the one of T5X's own T5."""
        if name not in self._tensors:
            self._missing.append(name)
            return
        self._found.add(name)
        tensor = self._tensors[name]
        if tuple(tensor.shape) not in shapes:
            raise UserError(
                f"{self._index}: tensor {name!r} has shape {tuple(tensor.shape)}, but this T5Config requires "
                f"{shapes[-1]}{description}. Give the model file of the checkpoint."
            )
        dtype = tensor.dtype if isinstance(tensor, np.ndarray) else tensor.dtype.numpy_dtype
        if not jnp.issubdtype(dtype, jnp.floating):
            raise UserError(
                f"{self._index}: tensor {name!r} has dtype {dtype}, which is not a floating-point type. Before June "
                "2021, T5X stored bfloat16 as uint16; save such a checkpoint again with a later T5X."
            )

    def _values(self, names: Sequence[str]) -> list[np.ndarray]:
        """Reads tensors at the same time."""
        tensors = [self._tensors[name] for name in names]
        started = [tensor if isinstance(tensor, np.ndarray) else tensor.read() for tensor in tensors]
        return [
            (value if isinstance(value, np.ndarray) else _result(value, self._index, name)).astype(
                np.float32, copy=False
            )
            for name, value in zip(names, started, strict=True)
        ]


def _insert(shape: tuple[int, ...], layers: int) -> tuple[int, ...]:
    return (*shape[:_SCAN_AXIS], layers, *shape[_SCAN_AXIS:])


def _merge_heads(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of T5X's tensor for a parameter: a kernel with heads is stored as a matrix.

    T5X's `scalable_t5` and Flaxformer keep the heads as an axis instead.
    """
    if len(shape) < 3:
        return shape
    return (shape[0] * shape[1], shape[2]) if name.endswith("/out/kernel") else (shape[0], shape[1] * shape[2])


# ---- files -----------------------------------------------------------------------------------------------------------


def _tensors(index: str) -> dict[str, _Tensor]:
    """Opens the parameters of a checkpoint.

    Args:
      index: as for `read`.

    Returns:
      T5X's name, without `target`, -> array. Arrays of TensorStore are open, but not read yet.

    Raises:
      UserError: the index or an array cannot be read, or the index has no parameters.
    """
    directory = index.rpartition("/")[0]
    if index.endswith("/_METADATA"):
        driver, leaves = _parse(index, _orbax_index)
    else:
        driver, leaves = "zarr", _parse(index, _msgpack_index)
    if not leaves:
        raise UserError(f"{index}: not a T5X checkpoint of T5: the index lists no parameters ({_TARGET!r})")
    has_ocdbt = paths.is_file(paths.join(directory, "manifest.ocdbt"))
    opened = {
        name: leaf
        if isinstance(leaf, np.ndarray)
        else _open(directory, _array_directory(index, name, leaf), driver, has_ocdbt)
        for name, leaf in leaves.items()
    }
    return {
        name: tensor if isinstance(tensor, np.ndarray) else _result(tensor, index, name)
        for name, tensor in opened.items()
    }


# What a damaged index raises: other types, missing keys, a name of a dtype that NumPy cannot parse, and nesting and
# numbers without limits.
_DAMAGE = (
    *(ValueError, TypeError, LookupError, AttributeError, SyntaxError),
    *(ArithmeticError, RecursionError, MemoryError),
)


def _parse(index: str, parser: Callable[[bytes], _Index]) -> _Index:
    try:
        return parser(paths.read_bytes(index))
    except _DAMAGE as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise UserError(
            f"{index}: truncated, or not the index of a T5X checkpoint ({reason}). Copy the checkpoint again."
        ) from error


def _orbax_index(contents: bytes) -> tuple[str, dict[str, str]]:
    """Returns the driver of the arrays, and the name of each parameter -> the placeholder of its array."""
    metadata = _tree(json.loads(contents))
    entries = _tree(metadata.get("tree_metadata", {})).values()
    keys = [[str(key["key"]) for key in entry["key_metadata"]] for entry in entries]
    leaves = {"/".join(key[1:]): _PLACEHOLDER + ".".join(key) for key in keys if key[0] == _TARGET}
    return "zarr3" if metadata.get("use_zarr3") else "zarr", leaves


def _msgpack_index(contents: bytes) -> dict[str, Any]:
    """Returns the name of each parameter -> its array, its spec of TensorStore, or its placeholder."""
    tree = _tree(serialization.msgpack_restore(contents))
    state = next((tree[key] for key in ("optimizer", "_optimizer") if key in tree), tree)
    return _leaves(_tree(state.get(_TARGET, {}))) if isinstance(state, Mapping) else {}


def _tree(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"it contains a {type(value).__name__} instead of a tree of tensors")
    return value


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens a tree whose leaves are arrays, specs of TensorStore, or placeholders."""
    leaves = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and not {"driver", "kvstore"} <= value.keys():
            leaves |= _leaves(value, f"{prefix}{key}/")
        elif value is not None:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _array_directory(index: str, name: str, leaf: Any) -> str:
    """Returns the directory of an array, relative to its index."""
    if isinstance(leaf, Mapping):
        # Until 2021, TensorStore had the path outside of `kvstore`.
        kvstore = leaf["kvstore"]
        directory = (kvstore.get("path") if isinstance(kvstore, Mapping) else None) or leaf.get("path")
    else:
        directory = leaf.removeprefix(_PLACEHOLDER) if isinstance(leaf, str) else None
    directory = directory.strip("/") if isinstance(directory, str) and not directory.startswith("/") else ""
    if not directory or ".." in directory.split("/") or "://" in directory or "\0" in directory:
        raise UserError(f"{index}: tensor {name!r} has no array in the directory of the checkpoint: {leaf!r:.200}")
    return directory


def _open(directory: str, name: str, driver: str, has_ocdbt: bool) -> tensorstore.Future:
    """Opens an array of zarr, in a directory of its own or in the OCDBT store of the checkpoint."""

    def store(path: str) -> dict[str, str] | str:
        return {"driver": "file", "path": f"{paths.local(path).absolute()}/"} if paths.is_local(path) else f"{path}/"

    kvstore: Any = store(paths.join(directory, name))
    if has_ocdbt:
        kvstore = {"driver": "ocdbt", "base": store(directory), "path": f"{name}/"}
    # A missing chunk is an error: otherwise, TensorStore reads it as zeros.
    return tensorstore.open({"driver": driver, "kvstore": kvstore, "fill_missing_data_reads": False}, read=True)


def _result(future: tensorstore.Future, index: str, name: str) -> Any:
    try:
        return future.result()
    except ValueError as error:
        reason = str(error).partition(" [")[0]
        raise UserError(f"{index}: tensor {name!r} cannot be read: {reason}. Copy the checkpoint again.") from error
