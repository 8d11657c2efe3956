"""Prefixes in the files of the library peft: `prompt_embeddings`, one row per key, with keys and values of all layers.

A row has the key of the first layer, its value, the key of the second layer, and so on. For an encoder-decoder, peft
reads each row twice and takes four entries per layer of the decoder: key and value of its self-attention, and two that
are not used. It has no prefix of the encoder and of the cross-attention.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from t5x_like import parameters
from t5x_like.adapters.base import ADAPTER
from t5x_like.adapters.prefix import Prefix
from t5x_like.errors import UserError
from t5x_like.interop import fields, registry, tables
from t5x_like.interop.adapter_base import Base
from t5x_like.interop.adapter_tensors import AdapterTensors
from t5x_like.models import build, construct
from t5x_like.models.base import ModelConfig

KIND, TENSOR = "PREFIX_TUNING", "prompt_embeddings"
# Types of models of transformers that take keys and values of a prefix.
MODEL_TYPES = ("bart", "bert", "gpt2", "llama", "mistral", "roberta", "t5")
_SELF_ATTENTION = "^decoder/layers/self_attention$"
Leaves = dict[str, Float[np.ndarray, "..."]]


def collapse(config: ModelConfig, leaves: Mapping[str, Any]) -> tuple[ModelConfig, dict[str, Any]]:
    """Returns a model with the keys and values of its prefix in place of MLPs; see `construct.collapse`.

    Args:
      config: configuration of the model.
      leaves: stored name -> array, `model/…` and others. Layers are stacked.

    Returns:
      The configuration and the parameters.
    """
    names = {name.removeprefix(tables.MODEL): x for name, x in leaves.items() if name.startswith(tables.MODEL)}
    model = construct.collapse(parameters.rebuild(build.stacked_shapes(config), names))
    others = {name: leaf for name, leaf in leaves.items() if not name.startswith(tables.MODEL)}
    return model.config, {tables.MODEL + name: x for name, x in parameters.named_leaves(model).items()} | others


def write(config: ModelConfig, leaves: Mapping[str, Any], model_type: str) -> tuple[Leaves, dict[str, Any]]:
    """Returns the tensor of a prefix, and its settings.

    Args:
      config: configuration of the model.
      leaves: stored name -> array. Layers are stacked.
      model_type: type of the model in transformers.

    Raises:
      UserError: peft does not have this prefix.
    """
    name = type(config).__name__
    if model_type not in MODEL_TYPES or any(getattr(config, "attention_windows", ())):
        problem = f"a {model_type} takes no prefix there" if model_type not in MODEL_TYPES else "windows hide it there"
        raise UserError(f"{name}.adapters: Prefix is not written for peft: {problem}. Use the run itself.")
    config, leaves = collapse(config, leaves)
    attention, is_pair = _attention(config)
    adapter = f"/{ADAPTER}/"
    present = {each.split(adapter)[0] for each in leaves if adapter in each}
    if present != {attention}:
        raise UserError(
            f"{name}.adapters: peft has a prefix of {attention.removeprefix(tables.MODEL)} alone, not of "
            f"{', '.join(sorted(each.removeprefix(tables.MODEL) for each in present))}. Train it with "
            f"PREFIX_PATTERN={_SELF_ATTENTION!r}, or use the run itself."
        )
    # [layers, length, 2, kv_heads, kv]
    pairs = np.stack([np.asarray(leaves[f"{attention}/{ADAPTER}/{each}"], np.float32) for each in ("key", "value")], 2)
    layers, length, _, heads, size = pairs.shape
    if is_pair:
        pairs = np.pad(pairs, ((0, 0), (0, 0), (0, 2), (0, 0), (0, 0)))
        layers *= 2
    settings = {
        "peft_type": KIND,
        "num_virtual_tokens": length,
        "num_layers": layers,
        "token_dim": heads * size,
        "num_attention_heads": heads,
        "encoder_hidden_size": heads * size,
        "num_transformer_submodules": 2 if is_pair else 1,
        "prefix_projection": False,
    }
    return {TENSOR: np.ascontiguousarray(np.swapaxes(pairs, 0, 1)).reshape(length, -1)}, settings


def read(settings: Mapping[str, Any], file: str, tensors: AdapterTensors, base: Base) -> tuple[tuple[Prefix], Leaves]:
    """Returns a prefix and its parameters.

    Args:
      settings: contents of adapter_config.json.
      file: its path, for messages.
      tensors: the tensors, of which `prompt_embeddings` is read.
      base: the base model.

    Raises:
      UserError: a setting or the tensor is missing, or does not fit the base model.
    """
    config, (attention, is_pair) = base.config, _attention(base.config)
    needed = ("num_virtual_tokens", "num_layers", "token_dim", "num_attention_heads")
    with registry.file_in_errors(file):
        if missing := [name for name in needed if settings.get(name) is None]:
            raise UserError(f"key {missing[0]!r} not found. Save the adapter again.")
        length, layers, width, heads = (fields.size(settings, name) for name in needed)
    info = config.stacks["decoder" if is_pair else next(iter(config.stacks))]
    own_layers, own_heads, size = info.stored_layers, info.num_kv_heads, info.head_dim
    copies = settings.get("num_transformer_submodules") or (2 if is_pair else 1)
    found, wanted = tensors.shapes.get(TENSOR), (length, 2 * layers * own_heads * size)
    fits = layers >= own_layers if is_pair else layers == own_layers
    if found != wanted or (width, heads) != (own_heads * size, own_heads) or not fits or copies != 1 + is_pair:
        raise UserError(
            f"{tensors.file}: {TENSOR!r} has shape {found}, with {layers} layers and {heads} heads "
            f"(token_dim={width}), which do not fit {own_layers} layers and {own_heads} heads of {size} of the base "
            "model. Give the base model of this prefix."
        )
    rows = tensors.require(TENSOR).reshape(length, 2 * layers, heads, size)
    first = np.arange(own_layers) * 4 % (2 * layers) if is_pair else np.arange(own_layers) * 2
    leaves = {
        f"{attention}/{ADAPTER}/{name}": np.swapaxes(rows[:, first + offset], 0, 1)
        for offset, name in enumerate(("key", "value"))
    }
    return (Prefix(length=length, pattern=_SELF_ATTENTION) if is_pair else Prefix(length=length),), leaves


def _attention(config: ModelConfig) -> tuple[str, bool]:
    """Returns the stored name of the attention that has a prefix in peft, and whether the model has two stacks."""
    is_pair = len(config.stacks) == 2
    (stack,) = ("decoder",) if is_pair else config.stacks
    return f"{tables.MODEL}{stack}/{parameters.LAYERS}/{'self_attention' if is_pair else 'attention'}", is_pair
