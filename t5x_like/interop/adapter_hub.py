"""Bottleneck adapters in the files of the library adapters: `adapter_config.json` and `adapter.safetensors`.

The blocks of `adapters.bottleneck` are its `double_seq_bn` (Houlsby et al. 2019), or a part of it, and the blocks of
`adapters.pfeiffer` its `seq_bn` (Pfeiffer et al. 2020).
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like import interop, paths
from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.bottleneck import BottleneckAdapter
from t5x_like.adapters.pfeiffer import PfeifferAdapter
from t5x_like.errors import UserError
from t5x_like.interop import adapted_matrices as matrices
from t5x_like.interop import json_files, safetensors_files, tables
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
        "reduction_factor": bare.embed_dim / adapter.size,
        "dropout": 0.0,
    }
    described = {
        "config": settings,
        "hidden_size": bare.embed_dim,
        "model_type": hf_config["model_type"],
        "model_class": hf_config["architectures"][0],
        "name": name,
        "version": _VERSION,
    }
    safetensors_files.write(directory, tensors, file=WEIGHTS)
    paths.write_atomic(paths.join(directory, CONFIG), json.dumps(described, indent=2) + "\n")


def read(
    directory: str, config: ModelConfig
) -> tuple[tuple[BottleneckAdapter, ...], dict[str, Float[np.ndarray, "..."]]]:
    """Reads blocks that the library wrote.

    Args:
      directory: local directory or bucket with `adapter_config.json` and `adapter.safetensors`.
      config: configuration of the base model, without adapters.

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
    for key, value in _FIXED.items():
        if settings.get(key, value) != value:
            raise UserError(
                f"{file}: {key} {settings[key]!r}: not supported, only {value!r}, as in double_seq_bn and seq_bn. "
                "Train the adapter with this configuration."
            )
    kind = PfeifferAdapter if settings.get("original_ln_before", False) else BottleneckAdapter
    if kind is PfeifferAdapter and settings.get("mh_adapter", False):
        raise UserError(
            f"{file}: mh_adapter True with original_ln_before True: not supported. Train the adapter as double_seq_bn, "
            "or as seq_bn, which has no block after attention."
        )
    activation = settings.get("non_linearity")
    if activation not in ACTIVATIONS and activation != "linear":
        raise UserError(f"{file}: non_linearity {activation!r}: not supported. Give one of {', '.join(ACTIVATIONS)}.")
    if WEIGHTS not in paths.listdir(directory):
        raise UserError(
            f"{directory}: {WEIGHTS} not found. Files that are pickled, such as pytorch_adapter.bin, are not read: "
            "save the adapter again with save_adapter(…, use_safetensors=True)."
        )
    stored, family = safetensors_files.Tensors(directory, WEIGHTS), interop.family_of(config)
    unread, leaves = set(stored), {}
    for module, matrix in matrices.find(family, config).items():
        block, place = _block(module), _place(matrix, module, kind)
        for own, theirs in _TENSORS.items() if None not in (block, place) else ():
            names = (f"{each}.{name}.{theirs}" for each in (block, matrices.without_prefix(block, family)))
            if (found := next((each for each in names if each in stored.shapes), None)) is not None:
                unread.discard(found)
                matrix.put(leaves, f"{place}/{own}", stored[found].astype(np.float32).T)
    if unread or not leaves:
        shown = f"tensor {min(unread)!r} is" if unread else "its tensors are"
        raise UserError(
            f"{paths.join(directory, WEIGHTS)}: {shown} no block of {family.config_class.__name__}. Check BASE_PATH, "
            "and that the adapter has bottleneck blocks alone."
        )
    sizes = {leaf.shape[-1] for each, leaf in leaves.items() if each.endswith("/down")}
    if len(sizes) > 1:
        raise UserError(f"{directory}: blocks of several sizes, {sorted(sizes)}. One size is supported.")
    shown = ACTIVATIONS.get(activation, activation)
    return (kind(pattern=matrices.pattern_of(leaves), size=sizes.pop(), activation=shown),), leaves


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
