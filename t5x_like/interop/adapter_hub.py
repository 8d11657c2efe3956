"""Bottleneck adapters in the files of the library adapters: `adapter_config.json` and `adapter.safetensors`.

The blocks of `adapters.bottleneck` are its `double_seq_bn` (Houlsby et al. 2019), or a part of it, and the blocks of
`adapters.pfeiffer` its `seq_bn` (Pfeiffer et al. 2020).
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Float

from t5x_like import interop, paths
from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.bottleneck import BottleneckAdapter
from t5x_like.adapters.pfeiffer import PfeifferAdapter
from t5x_like.errors import UserError
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.interop import fields, json_files, registry, safetensors_files, tables
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.adapter_tensors import AdapterTensors
from t5x_like.interop.bert import ACTIVATIONS
from t5x_like.models import construct
from t5x_like.models.base import ModelConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter.safetensors"
_VERSION = "adapters.1.3.0"  # the version that defines the names and settings below
# Name of a matrix in transformers -> name of the block after it.
_BLOCKS = (
    (r"(attention\.output|(?<!attention\.)output)\.dense$", r"\1.adapters"),
    (r"\.layer\.(\d)\.(SelfAttention\.o|DenseReluDense\.wo)$", r".layer.\1.adapters"),
    (r"\.(attn\.c_proj|self_attn\.o_proj|self_attn\.out_proj|attention\.out_lin)$", ".attention_adapters.adapters"),
    (r"\.(mlp\.c_proj|mlp\.down_proj|fc2|ffn\.lin2)$", ".output_adapters.adapters"),
    (r"\.attention\.dense$", ".attention.attention_adapters.adapters"),
    (r"\.ffn_output$", ".output_adapters.adapters"),
)
_ATTENTION = re.compile("attention|attn", re.IGNORECASE)
# Types of models of transformers that the library adapts, except for `deberta`, whose outputs it changes without
# adapters: its `LoRAMergedLinear` adds a bias with random values to `in_proj`, which has none.
_MODEL_TYPES = (
    *("albert", "bart", "bert", "deberta-v2", "distilbert", "electra"),
    *("gpt2", "llama", "mistral", "roberta", "t5"),
)
_HEAD = "head_config.json"
_TENSORS = {"down": "adapter_down.0.weight", "down_bias": "adapter_down.0.bias"}
_TENSORS |= {"up": "adapter_up.weight", "up_bias": "adapter_up.bias"}
# Settings with one supported value.
_FIXED = {
    "adapter_residual_before_ln": False,
    "cross_adapter": False,
    "inv_adapter": None,
    "is_parallel": False,
    "ln_after": False,
    "ln_before": False,
    "original_ln_after": True,
    "phm_layer": False,
    "residual_before_ln": True,
    "scaling": 1.0,
    "use_gating": False,
}


def write(config: ModelConfig, leaves: Mapping[str, Any], directory: str, name: str = "t5x_like") -> None:
    """Writes the blocks of a model for `load_adapter`.

    Args:
      config: configuration of the model.
      leaves: stored name -> array, `model/…`. Layers are stacked.
      directory: local directory or bucket.
      name: name of the adapter.

    Raises:
      UserError: the library does not have these adapters. Nothing has been written.
    """
    if len(config.adapters) != 1 or not isinstance(config.adapters[0], BottleneckAdapter):
        raise UserError(
            f"{type(config).__name__}.adapters: not one BottleneckAdapter, which this format has. "
            "Give a run of adapters/houlsby.gin or adapters/pfeiffer.gin."
        )
    (adapter,), bare = config.adapters, construct.without_adapters(config)
    kind = type(adapter)
    family = interop.family_of(bare)
    hf_config, _ = interop.describe_class(family, bare, [each for each in leaves if each.startswith(tables.MODEL)])
    model_type = hf_config["model_type"]
    _check_type(model_type)
    tensors: dict[str, Any] = {}
    places: set[bool] = set()  # whether blocks follow attention
    for module, matrix in matrices.find(family, bare).items():
        place = _place(matrix, module, kind)
        if place is None or f"{place}/down" not in leaves:
            continue
        block = _block(module)
        if block is None:
            raise UserError(
                f"{kind.__name__}.pattern={adapter.pattern!r}: the library adapters has no block after {module}. Use "
                "the run itself, or train with a pattern without this block."
            )
        places.add(bool(_ATTENTION.search(module)))
        if True in places:
            _check_attention(model_type)
        block = matrices.module_name(block, family, None, hf_config["architectures"][0])
        for own, theirs in _TENSORS.items():
            tensors[f"{block}.{name}.{theirs}"] = matrix.leaf(leaves, f"{place}/{own}").T
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())} | {"linear": "linear"}
    settings = {
        **_FIXED,
        "original_ln_before": kind is PfeifferAdapter,
        "mh_adapter": True in places,
        "output_adapter": False in places,
        "non_linearity": names[adapter.activation],
        "reduction_factor": _reduction_factor(bare.embed_dim, adapter.size),
        "dropout": 0.0,
    }
    described = {
        "config": settings,
        "hidden_size": bare.embed_dim,
        "model_type": model_type,
        "model_class": hf_config["architectures"][0],
        "name": name,
        "version": _VERSION,
    }
    safetensors_files.write(directory, tensors, file=WEIGHTS)
    paths.write_atomic(paths.join(directory, CONFIG), json.dumps(described, indent=2) + "\n")


def _reduction_factor(width: int, size: int) -> float:
    """Returns the factor of a size in the library, which rounds the quotient of width and factor down."""
    exact = width / size
    return exact if int(width // exact) == size else width / (size + 0.5)


def read(directory: str, base: Base) -> tuple[tuple[BottleneckAdapter, ...], dict[str, Float[np.ndarray, "..."]]]:
    """Reads blocks that the library wrote. Smaller ones than the largest are filled with zeros.

    Args:
      directory: local directory or bucket with `adapter_config.json` and `adapter.safetensors`.
      base: the base model.

    Returns:
      The adapters for `config.adapters`, and stored name -> their parameters.

    Raises:
      UserError: a file is missing or invalid, or the adapters are not supported.
    """
    contents = json_files.read(file := paths.join(directory, CONFIG))
    settings, name = contents.get("config"), contents.get("name")
    if not isinstance(settings, dict) or not isinstance(name, str):
        raise UserError(
            f"{file}: neither a bottleneck of the library adapters nor an adapter of peft. Give a directory that "
            "save_adapter or save_pretrained wrote."
        )
    with registry.file_in_errors(file):
        kind = _check(settings, base.family.config_to_json(base.config, [])["model_type"])
    if WEIGHTS not in paths.listdir(directory):
        raise UserError(
            f"{directory}: {WEIGHTS} not found. Files that are pickled, such as pytorch_adapter.bin, are not read: "
            "save the adapter again with save_adapter(…, use_safetensors=True)."
        )
    if _HEAD in paths.listdir(directory):
        logging.warning("%s: the head of %s is not read. The result has the heads of the base model.", directory, _HEAD)
    tensors, blocks = AdapterTensors(directory, WEIGHTS), []
    for module, matrix in matrices.find(base.family, base.config).items():
        block, place = _block(module), _place(matrix, module, kind)
        if block is None or place is None:
            continue
        with registry.file_in_errors(file):
            size = _size(settings, matrix, module, base.config)
        if size is not None:
            names = [f"{each}.{name}" for each in (block, matrices.without_prefix(block, base.family))]
            stored = next((each for each in names if tensors.find(f"{each}.{_TENSORS['up']}")), names[0])
            blocks.append((matrix, place, size, stored))
    leaves: dict[str, Any] = {}
    largest, width = max((size for _, _, size, _ in blocks), default=0), base.config.embed_dim
    for matrix, place, size, stored in blocks:
        shapes = {"down": (size, width), "down_bias": (size,), "up": (width, size), "up_bias": (width,)}
        found = {own: tensors.require(f"{stored}.{_TENSORS[own]}", shape).T for own, shape in shapes.items()}
        missing = (0, largest - size)
        found["down"], found["up"] = np.pad(found["down"], ((0, 0), missing)), np.pad(found["up"], (missing, (0, 0)))
        found["down_bias"] = np.pad(found["down_bias"], missing)
        for own, tensor in found.items():
            matrix.put(leaves, f"{place}/{own}", tensor)
    if tensors.unread or not leaves:
        shown = f"tensor {min(tensors.unread)!r} is" if tensors.unread else "its tensors are"
        raise UserError(
            f"{tensors.file}: {shown} no block of {base.family.config_class.__name__}. Check BASE_PATH, and that the "
            "adapter has bottleneck blocks alone."
        )
    activation = settings["non_linearity"]
    shown = ACTIVATIONS.get(activation, activation)
    return (kind(pattern=matrices.pattern_of(leaves), size=largest, activation=shown),), leaves


def _check(settings: Mapping[str, Any], model_type: str) -> type[BottleneckAdapter]:
    """Checks the settings of an adapter, and returns its class.

    Raises:
      UserError: a setting is not supported. The caller adds the file.
    """
    _check_type(model_type)
    for key, value in _FIXED.items():
        if settings.get(key, value) != value:
            raise UserError(
                f"{key} {settings[key]!r}: not supported, only {value!r}, as in double_seq_bn and seq_bn. Train the "
                "adapter with this configuration."
            )
    flags = dict.fromkeys(("original_ln_before", "mh_adapter", "output_adapter"), False)
    flags = {key: fields.boolean(flags | settings, key) for key in flags}
    if flags["original_ln_before"] and flags["mh_adapter"]:
        raise UserError(
            "mh_adapter True with original_ln_before True: not supported. Train the adapter as double_seq_bn, or as "
            "seq_bn, which has no block after attention."
        )
    if flags["mh_adapter"]:
        _check_attention(model_type)
    activation = settings.get("non_linearity")
    if not isinstance(activation, str) or (activation not in ACTIVATIONS and activation != "linear"):
        raise UserError(f"non_linearity {activation!r:.80}: not supported. Give one of {', '.join(ACTIVATIONS)}.")
    left_out = settings.get("leave_out") or []
    if not isinstance(left_out, list) or not all(type(layer) is int for layer in left_out):
        raise UserError(f"leave_out {left_out!r:.80}: must be a list of integers. Save the adapter again.")
    return PfeifferAdapter if flags["original_ln_before"] else BottleneckAdapter


def _check_type(model_type: str) -> None:
    if model_type not in _MODEL_TYPES:
        raise UserError(
            f"model_type {model_type!r}: not supported in files of the library adapters, but "
            f"{', '.join(_MODEL_TYPES)}. Use the run itself."
        )


def _check_attention(model_type: str) -> None:
    if model_type == "albert":
        raise UserError(
            "mh_adapter True: not supported for ALBERT, where the library adapters applies the block after attention "
            "to the input of the attention. Train without it, with ADAPTER_PATTERN='mlp/wo$'."
        )


def _size(settings: Mapping[str, Any], matrix: matrices.Matrix, module: str, config: ModelConfig) -> int | None:
    """Returns the size of the block after a matrix, or None if it has none. Layers of a decoder follow the encoder's.

    Raises:
      UserError: a reduction factor is missing, or not a positive number. The caller adds the file.
    """
    if not settings.get("mh_adapter" if _ATTENTION.search(module) else "output_adapter"):
        return None
    (projection, *_), *_ = matrix.projections.values()
    is_second = len(config.stacks) == 2 and projection.startswith(f"{tables.MODEL}decoder/")
    layer = matrix.layer + (config.stacks["encoder"].num_layers if is_second else 0)
    if layer in (settings.get("leave_out") or ()):
        return None
    factors = settings.get("reduction_factor")
    factors = factors if isinstance(factors, dict) else {"default": factors}
    key = str(layer) if str(layer) in factors else "default"
    if fields.number({"reduction_factor": factors.get(key)}, "reduction_factor") <= 0:
        raise UserError(f"reduction_factor {factors[key]}: must be positive. Save the adapter again.")
    return int(config.embed_dim // factors[key])


def _place(matrix: matrices.Matrix, module: str, kind: type[BottleneckAdapter]) -> str | None:
    """Returns the stored name of the adapter of a block after a matrix, or None if no block can follow it."""
    (projection, *_), *others = matrix.projections.values()
    if others:
        return None
    if kind is not PfeifferAdapter:
        return f"{projection}/{ADAPTER}"
    layer = projection.removesuffix("/mlp/wo")
    return f"{layer}/{ADAPTER}" if layer != projection else None


def _block(module: str) -> str | None:
    """Returns the name of the block after a matrix, or None."""
    for pattern, block in _BLOCKS:
        name, count = re.subn(pattern, block, module)
        if count:
            return name
    return None
