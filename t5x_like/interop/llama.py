"""Maps Llama and Mistral, with logits or with the heads of classification, to transformers."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, rope, rotary_decoders
from t5x_like.interop.rotary_decoders import DecoderFiles, Windows, entries
from t5x_like.interop.tensor_mapping import HeadClass, TensorMapping
from t5x_like.models.llama import LlamaConfig

_BIASES = ("attention_bias", "mlp_bias")
_SIZES = {
    "vocab_size": ("vocab_size", 32000),
    "embed_dim": ("hidden_size", 4096),
    "num_heads": ("num_attention_heads", 32),
    "num_layers": ("num_hidden_layers", 32),
}


class LlamaFiles(DecoderFiles):
    """How transformers stores Llama or Mistral."""

    def table(self, config: LlamaConfig) -> list[TensorMapping]:
        """Returns the mapping of every tensor."""
        attention = rotary_decoders.PROJECTIONS if config.attention_bias else ()
        return rotary_decoders.table(config, biases=(*attention, *(rotary_decoders.KERNELS if config.mlp_bias else ())))


_LLAMA = LlamaFiles(
    entries=entries(
        LlamaConfig,
        "Llama",
        "llama",
        keys=_SIZES | {"mlp_dim": ("intermediate_size", 11008)} | {name: (name, False) for name in _BIASES},
        required={"attention_windows": (None,)},
    ),
    heads="Llama",
)
_MISTRAL = LlamaFiles(
    entries=entries(
        LlamaConfig,
        "Mistral",
        "mistral",
        keys=_SIZES | {"mlp_dim": ("intermediate_size", 14336)},
        defaults={"max_position_embeddings": 131072},
        required=dict.fromkeys(_BIASES, False),
    ),
    windows=Windows(default=4096),
    heads="Mistral",
    answering_prefix="",
)
_FILES = {"llama": _LLAMA, "mistral": _MISTRAL}
_MISTRAL_KV_HEADS = 8


def config_from_huggingface(hf_config: Mapping[str, Any]) -> LlamaConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`.

    Raises:
      UserError: a value has the wrong type, or is not supported, such as layers with different windows.
    """
    model_type = hf_config["model_type"]
    if len(set(fields.strings(hf_config, "layer_types"))) > 1:
        raise UserError(f"layer_types {hf_config['layer_types']}: not supported. All layers must have the same type.")
    if model_type == "mistral":
        hf_config = {"num_key_value_heads": _MISTRAL_KV_HEADS, **hf_config}
    files = _FILES[model_type]
    rope.from_json(files.entries.with_defaults(hf_config))  # raises if layers have different ones
    found = LlamaConfig(**files.fields_from_json(hf_config))
    # Without a window, the configuration is that of Llama.
    is_marked = model_type == "mistral" and found.attention_windows == (None,)
    return dataclasses.replace(found, model_type="mistral") if is_marked else found


def config_to_huggingface(config: LlamaConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json: by default Mistral's with a window, else Llama's.

    Raises:
      UserError: transformers does not support the model.
    """
    # Without imported special tokens, the defaults of the family in transformers apply.
    default = "llama" if config.attention_windows == (None,) else "mistral"
    return _FILES[config.model_type or default].config_to_json(config, heads)


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    return _FILES[hf_config["model_type"]].head_classes(hf_config)


# Frequencies of the rotations, which old versions of transformers wrote.
_IGNORED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")

FAMILY = _LLAMA.family(
    model_types=tuple(_FILES),
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    head_classes=head_classes,
    sentencepiece="tokenizer.model",
    free_fields=("max_length", "model_type"),  # parameters do not depend on them
    ignored=_IGNORED,
)
