"""Weights in integers in the format of the library compressed-tensors, which transformers and vLLM load.

A directory has the integers of a projection and their scales in its safetensors, and says in `quantization_config` of
config.json how they are stored:

    weights alone          `X.weight_packed`, int32 words with 8 integers of 4 bits or 4 of 8 bits, plus 2^(bits - 1);
                           `X.weight_shape`; and `X.weight_scale`, one per output
    weights and inputs     `X.weight`, int8; `X.weight_scale`; and for a static range `X.input_scale`

The integers of an export are found from its dense tensors: the scales of all elements of the kernels are converted to
the layout of transformers in the same way as the kernels, so families need no rules of their own.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Float, Int32

from t5x_like import parameters, paths
from t5x_like.adapters import quantization
from t5x_like.adapters.base import named_modules
from t5x_like.errors import UserError
from t5x_like.interop import json_files, safetensors_files
from t5x_like.kernels.quantization import scale_of
from t5x_like.layers.projections import Projection
from t5x_like.models import build
from t5x_like.models.base import ModelConfig

KEY, METHOD = "quantization_config", "compressed-tensors"
_BITS = {"int8": 8, "int4": 4}
_WORD = 32
_WEIGHT, _BIAS, _PACKED, _SCALE, _SHAPE, _INPUT_SCALE, _ZERO = (
    ".weight",
    ".bias",
    ".weight_packed",
    ".weight_scale",
    ".weight_shape",
    ".input_scale",
    ".weight_zero_point",
)
_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
_DENSE = "Give the model with dense weights"
_EXPORT = "Export the model again."


@dataclasses.dataclass(frozen=True)
class Integers:
    """How the kernels of a quantized model are rounded.

    Attributes:
      dtype: `int8` or `int4`.
      activations: None, `dynamic` or `static`; see `adapters.quantization.Settings`.
      scales: stored name of each quantized kernel -> the scale of each of its elements.
      rounded_inputs: stored names of the kernels whose inputs are rounded. The inputs of the logits are not.
      input_scales: with static ranges, stored name of each of these kernels -> the scale of the inputs, as an array of
        the shape of the kernel.
    """

    dtype: str
    activations: str | None
    scales: Mapping[str, Float[np.ndarray, "..."]]
    rounded_inputs: frozenset[str]
    input_scales: Mapping[str, Float[np.ndarray, "..."]]


def integers_of(config: ModelConfig, leaves: Mapping[str, Any]) -> Integers:
    """Returns how the kernels of a model are rounded.

    Args:
      config: configuration of the model.
      leaves: stored name -> array; names of the model begin with `model/`. Layers are stacked.

    Raises:
      UserError: the model has no integers, integers of several types, or other adapters.
    """
    settings = [each for each in quantization.find(config.adapters) if isinstance(each, quantization.Quantized)]
    others = sorted({type(each).__name__ for each in config.adapters if each not in settings})
    if not settings or settings[0].dtype not in _BITS:
        raise UserError(
            "INTEGERS=True: the run has no weights in integers. Quantize it first (QUANTIZATION='int8'), and convert "
            "the result."
        )
    if others:
        raise UserError(
            f"INTEGERS=True: the run has {others[0]} beside its integers, whose update is not an integer. Export the "
            "dense model (INTEGERS=False), or merge and quantize it again."
        )
    if len({(each.dtype, each.activations) for each in settings}) > 1:
        raise UserError(
            "INTEGERS=True: the run has several types of integers. Export the dense model (INTEGERS=False)."
        )
    (dtype, activations), prefix = (settings[0].dtype, settings[0].activations), "model/"
    names = {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}
    model = parameters.rebuild(build.stacked_shapes(config), names)
    scales, rounded_inputs, input_scales = {}, set(), {}
    for name, module in named_modules(model, (Projection,)):
        if (stored := module.quantization) is None:
            continue
        shape = list(np.shape(stored.values))
        shape[-1] *= _BITS["int8"] // _BITS[dtype]
        kernel = f"{prefix}{name}/kernel"
        scales[kernel] = np.broadcast_to(np.asarray(stored.scale[...]), shape)
        if stored.activations is not None:
            rounded_inputs.add(kernel)
        if stored.activations == "static":
            of_inputs = np.asarray(scale_of(stored.range[...][..., 0], "int8"))
            input_scales[kernel] = np.broadcast_to(
                of_inputs.reshape(of_inputs.shape + (1,) * (len(shape) - of_inputs.ndim)), shape
            )
    return Integers(dtype, activations, scales, frozenset(rounded_inputs), input_scales)


def encode(
    tensors: Mapping[str, Float[np.ndarray, "..."]],
    integers: Integers,
    matrices: Collection[str],
    to_tensors: Callable[[Mapping[str, np.ndarray]], Mapping[str, Float[np.ndarray, "..."]]],
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Replaces tensors of an export by their integers and scales.

    Embedding tables and projections that transformers stores transposed (`Conv1D` of GPT-2) stay dense, because the
    format has only matrices `[outputs, inputs]` of `torch.nn.Linear`. With static ranges, biases are rounded to the
    scale of the product, as `adapters.quantization` adds them.

    Args:
      tensors: Hugging Face name -> dense tensor.
      integers: how the kernels are rounded.
      matrices: the names of the tensors that are matrices `[outputs, inputs]`.
      to_tensors: converts values of kernels, by stored name, to tensors by Hugging Face name, as `tables.write` does;
        the values of all other parameters are 0.

    Returns:
      Hugging Face name -> tensor, and the contents of `quantization_config`.

    Raises:
      UserError: no tensor can be written in integers.
    """
    scales = to_tensors(integers.scales)
    chosen = {name: integers.scales[name] for name in integers.rounded_inputs}
    rounded = to_tensors(chosen) if chosen else {}  # positive where the inputs are rounded
    of_inputs = to_tensors(integers.input_scales) if integers.input_scales else {}
    found: dict[str, np.ndarray] = {}
    modules, dense = {}, []  # name of each module -> whether its inputs are rounded
    for name, tensor in tensors.items():
        scale = scales[name]
        is_linear = name in matrices and name.endswith(_WEIGHT)
        is_linear = is_linear and np.all(scale > 0) and np.all(scale == scale[:, :1])
        if not is_linear:
            dense += [name] if np.any(scale > 0) else []
            found.setdefault(name, tensor)
            continue
        module = name.removesuffix(_WEIGHT)
        modules[module] = bool(rounded) and bool(np.all(rounded[name] > 0))
        values = np.rint(tensor / scale).astype(np.int8)
        if integers.activations is None:
            found[module + _PACKED] = _pack(values, _BITS[integers.dtype])
            found[module + _SHAPE] = np.array(values.shape, np.int64)
        else:
            found[name] = values
        found[module + _SCALE] = np.ascontiguousarray(scale[:, :1])
        if integers.activations == "static" and modules[module]:
            found[module + _INPUT_SCALE] = of_inputs[name][0, :1].copy()
            if (bias := tensors.get(module + _BIAS)) is not None:
                of_product = of_inputs[name][0, 0] * scale[:, 0]
                found[module + _BIAS] = np.rint(bias / of_product) * of_product
    if not modules:
        raise UserError(
            "INTEGERS=True: transformers has no torch.nn.Linear among the quantized projections of this family. "
            "Export the dense model (INTEGERS=False)."
        )
    if dense:
        logging.warning(
            "%d of the quantized tensors stay dense, such as %s: not a torch.nn.Linear", len(dense), dense[0]
        )
    return found, _settings(integers, modules, tensors)


def tensors(directory: str) -> "safetensors_files.Tensors | Decoded":
    """Returns the tensors of a Hugging Face directory by name; those in integers as the floats that they stand for.

    Args:
      directory: local directory or bucket with safetensors and, unless all tensors are dense, config.json.

    Raises:
      UserError: as `safetensors_files.Tensors`, or integers are stored in another way than this module reads.
    """
    stored, file = safetensors_files.Tensors(directory), paths.join(directory, "config.json")
    settings = json_files.read(file).get(KEY) if paths.is_file(file) else None
    if settings is None:
        return stored
    if not isinstance(settings, dict) or settings.get("quant_method") != METHOD:
        method = settings.get("quant_method") if isinstance(settings, dict) else settings
        raise UserError(f"{file}: {KEY} has quant_method {method!r}. Supported: {METHOD!r}. {_DENSE}.")
    groups = settings.get("config_groups") or {}
    if not isinstance(groups, dict):
        raise UserError(f"{file}: config_groups of {KEY} is not a JSON object: {groups!r:.80}. {_EXPORT}")
    bits = sorted({_bits(file, group, settings.get("format")) for group in groups.values()})
    if not bits and any(name.endswith(_PACKED) for name in stored):
        raise UserError(
            f"{file}: {KEY} has no config_groups, but {directory} has tensors in integers, such as "
            f"{next(name for name in stored if name.endswith(_PACKED))!r}. {_EXPORT}"
        )
    return Decoded(directory, stored, bits)


def _bits(file: str, group: Any, packing: Any) -> int:
    """Returns the number of bits of the weights of a group in `config_groups`.

    Args:
      file: path of config.json, for messages.
      group: the group.
      packing: `format` of the file.

    Raises:
      UserError: the weights are stored in a way that this module does not read.
    """
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise UserError(f"{file}: a group in config_groups of {KEY} has no weights: {group!r:.80}. {_EXPORT}")
    kind = {key: weights.get(key) for key in ("type", "num_bits", "strategy", "symmetric")}
    is_known = (
        kind["type"] in ("int", None)
        and kind["num_bits"] in _BITS.values()
        and kind["strategy"] in ("channel", "tensor", "group")
        and kind["symmetric"] in (True, None)
    )
    if not is_known or packing not in _FORMATS:
        raise UserError(
            f"{file}: {KEY} has weights {kind} in format {packing!r}. Supported: symmetric integers of 8 or 4 bits per "
            f"channel, group or tensor, in {', '.join(_FORMATS)}. {_DENSE}."
        )
    return kind["num_bits"]


class Decoded(Mapping[str, Float[np.ndarray, "..."]]):
    """The tensors of a directory in this format by name, dense. Each access reads one tensor.

    Args:
      directory: the directory, for messages.
      stored: its tensors.
      bits: the numbers of bits of its integers.

    Attributes:
      shapes: name -> shape of every tensor.
    """

    def __init__(self, directory: str, stored: safetensors_files.Tensors, bits: Sequence[int]):
        self._directory, self._stored, self._bits = directory, stored, bits
        self._modules = {name.removesuffix(_SCALE) for name in stored if name.endswith(_SCALE)}
        if zeros := [name for name in stored if name.endswith(_ZERO)]:
            raise UserError(f"{directory}: tensor {zeros[0]!r}: integers with zero points are not supported. {_DENSE}.")
        hidden = {module + suffix for module in self._modules for suffix in (_PACKED, _SCALE, _SHAPE, _INPUT_SCALE)}
        self.shapes = {name: shape for name, shape in stored.shapes.items() if name not in hidden}
        for module in self._modules:
            if module + _PACKED in stored.shapes:
                if module + _SHAPE not in stored.shapes:
                    raise UserError(f"{directory}: tensor {module + _SHAPE!r} is missing. {_EXPORT}")
                self.shapes[module + _WEIGHT] = tuple(int(size) for size in stored.integers(module + _SHAPE))
            elif module + _WEIGHT not in stored.shapes:
                raise UserError(f"{directory}: the integers of {module + _SCALE!r} are missing. {_EXPORT}")

    def __getitem__(self, name: str) -> Float[np.ndarray, "..."]:
        module = name.removesuffix(_WEIGHT)
        if module == name or module not in self._modules:
            return self._stored[name]
        scale = self._stored[module + _SCALE].astype(np.float32)
        if module + _PACKED in self._stored.shapes:
            rows, columns = self.shapes[name]
            values = self._unpacked(name, self._stored.integers(module + _PACKED), columns)
        else:
            values = self._stored.integers(name)
            rows, columns = values.shape
        scale = np.broadcast_to(scale.reshape(-1, scale.shape[-1]), (rows, scale.shape[-1]))
        return values.astype(np.float32) * np.repeat(scale, columns // scale.shape[1], axis=1)

    def check_dtype(self, name: str) -> None:
        """Checks that a tensor can be read; see `safetensors_files.Tensors.check_dtype`."""
        if name.removesuffix(_WEIGHT) not in self._modules:
            self._stored.check_dtype(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def _unpacked(self, name: str, words: Int32[np.ndarray, "rows words"], columns: int) -> np.ndarray:
        for bits in self._bits:
            if words.shape[-1] == -(-columns * bits // _WORD):
                shifts = np.arange(0, _WORD, bits, dtype=np.uint32)
                values = (words.view(np.uint32)[..., None] >> shifts) & np.uint32(2**bits - 1)
                return values.reshape(len(words), -1)[:, :columns].astype(np.int32) - 2 ** (bits - 1)
        raise UserError(
            f"{self._directory}: {words.shape[-1]} words per row of {name!r} do not hold {columns} integers of "
            f"{' or '.join(map(str, self._bits))} bits. {_EXPORT}"
        )


def _pack(values: np.ndarray, bits: int) -> Int32[np.ndarray, "rows words"]:
    """Packs the integers of each row into words, the first one into the lowest bits."""
    per_word = _WORD // bits
    padded = np.pad(values, ((0, 0), (0, -values.shape[1] % per_word)), constant_values=-(2 ** (bits - 1)))
    digits = (padded.astype(np.int32) + 2 ** (bits - 1)).astype(np.uint32).reshape(len(values), -1, per_word)
    shifts = np.arange(0, _WORD, bits, dtype=np.uint32)
    return np.bitwise_or.reduce(digits << shifts, axis=-1).view(np.int32)


def _settings(integers: Integers, modules: Mapping[str, bool], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of `quantization_config`, with a group for each way in which inputs are rounded.

    Args:
      integers: how the kernels are rounded.
      modules: name of each quantized module -> whether its inputs are rounded.
      tensors: all tensors of the model, with dense weights.
    """
    packing = "pack-quantized" if integers.activations is None else "int-quantized"
    is_dynamic = integers.activations == "dynamic"
    groups = []
    for has_inputs in (True, False):
        if not (chosen := [name for name, rounded in modules.items() if rounded is has_inputs]):
            continue
        inputs = _arguments(8, "token" if is_dynamic else "tensor", dynamic=is_dynamic) if has_inputs else None
        groups.append(
            {
                "targets": _targets(chosen, tensors),
                "weights": _arguments(_BITS[integers.dtype], "channel"),
                "input_activations": inputs,
                "output_activations": None,
                "format": packing,
            }
        )
    return {
        "quant_method": METHOD,
        "format": packing,
        "quantization_status": "compressed",
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        "ignore": [],
    }


def _arguments(bits: int, strategy: str, *, dynamic: bool = False) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": dynamic}


def _targets(modules: Sequence[str], tensors: Mapping[str, Any]) -> list[str]:
    """Returns regular expressions of the names of the quantized modules, also in a class without the prefix."""
    others = {name.removesuffix(_WEIGHT) for name in tensors if name.endswith(_WEIGHT)} - set(modules)
    found = []
    for module in modules:
        parts = module.split(".")
        # The name of the list of layers, or else what follows the prefix.
        first = next((i - 1 for i, part in enumerate(parts) if part.isdigit()), 1)
        pattern = r"\.".join(r"\d+" if part.isdigit() else re.escape(part) for part in parts[max(0, first) :])
        pattern = rf"(.*\.)?{pattern}$"
        if len(parts) == 1 or any(re.match(pattern, other) for other in others):
            pattern = re.escape(module) + "$"
        found.append(f"re:{pattern}")
    return list(dict.fromkeys(found))
