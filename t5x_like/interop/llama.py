"""Maps Llama and Mistral, with logits or with the heads of classification, to transformers."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, rope, rotary_decoders
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import SEQUENCE, TOKENS, question_answering, tagging_form
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense
from t5x_like.models.llama import LlamaConfig
from t5x_like.objectives import heads

_BIASES = {"attention_bias": ("attention_bias", False), "mlp_bias": ("mlp_bias", False)}
_LLAMA = ConfigMap(
    config_class=LlamaConfig,
    model="Llama",
    model_type="llama",
    keys=rotary_decoders.KEYS
    | {
        "vocab_size": ("vocab_size", 32000),
        "embed_dim": ("hidden_size", 4096),
        "mlp_dim": ("intermediate_size", 11008),
        "num_heads": ("num_attention_heads", 32),
        "num_layers": ("num_hidden_layers", 32),
        **_BIASES,
    },
    defaults={"hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 2048},
    required={"attention_windows": (None,)},
    activations=rotary_decoders.ACTIVATIONS,
    classes={(): "LlamaForCausalLM"},
)
_MISTRAL = dataclasses.replace(
    _LLAMA,
    model="Mistral",
    model_type="mistral",
    keys={field: key for field, key in _LLAMA.keys.items() if field not in _BIASES}
    | {"mlp_dim": ("intermediate_size", 14336)},
    defaults=_LLAMA.defaults | {"max_position_embeddings": 131072},
    required=dict.fromkeys(_BIASES, False),
    classes={(): "MistralForCausalLM"},
)
_MISTRAL_WINDOW, _MISTRAL_KV_HEADS = 4096, 8


def config_from_huggingface(hf_config: Mapping[str, Any]) -> LlamaConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`.

    Raises:
      UserError: a value has the wrong type, or is not supported, such as layers with different windows.
    """
    mistral = hf_config["model_type"] == "mistral"
    entries = _MISTRAL if mistral else _LLAMA
    # Read before defaults are applied: null differs from a missing key.
    window = hf_config.get("sliding_window", _MISTRAL_WINDOW) if mistral else None
    kv_heads = hf_config.get("num_key_value_heads", _MISTRAL_KV_HEADS) if mistral else None
    hf_config = entries.with_defaults(hf_config)
    width, heads = (fields.size(hf_config, name) for name in ("hidden_size", "num_attention_heads"))
    hf_config.setdefault("num_key_value_heads", kv_heads or heads)
    hf_config.setdefault("head_dim", width // heads)
    if len(set(fields.strings(hf_config, "layer_types"))) > 1:
        raise UserError(f"layer_types {hf_config['layer_types']}: not supported. All layers must have the same type.")
    theta, scaling, max_length = rope.from_json(hf_config)
    return LlamaConfig(
        **entries.read(hf_config) | {"attention_windows": (window,)},
        model_type="mistral" if mistral and window is None else None,
        max_length=max_length,
        rope_theta=theta,
        rope_scaling=scaling,
    )


def config_to_huggingface(config: LlamaConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json: by default Mistral's with a window, else Llama's.

    Raises:
      UserError: transformers does not support the model.
    """
    model_type = config.model_type or ("llama" if config.attention_windows == (None,) else "mistral")
    # Without imported special tokens, the defaults of the family in transformers apply.
    found = rope.to_json(config.rope_theta, config.rope_scaling, config.max_length)
    if model_type == "llama":
        return _LLAMA.to_json(config, **found)
    if len(config.attention_windows) > 1:
        raise UserError(
            f"attention_windows={config.attention_windows}: not supported by transformers' Mistral, which has one "
            "window for all layers"
        )
    return _MISTRAL.to_json(config, **found) | {"sliding_window": config.attention_windows[0]}


def table(config: LlamaConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor."""
    attention = rotary_decoders.PROJECTIONS if config.attention_bias else ()
    return rotary_decoders.table(config, biases=(*attention, *(rotary_decoders.KERNELS if config.mlp_bias else ())))


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    name = "Mistral" if hf_config["model_type"] == "mistral" else "Llama"
    score = tuple(dense(f"{OBJECTIVE}{SEQUENCE}/classifier", "score", bias=False))
    tagging = tuple(dense(f"{OBJECTIVE}{TOKENS}/classifier", "score"))
    answering = {"model_prefix": rotary_decoders.ANSWERING_PREFIX, "replaced_prefix": "model."}
    prefixes = answering if name == "Llama" else {}
    return (
        HeadClass(f"{name}ForSequenceClassification", SEQUENCE, score, lambda hf_config: heads.LastToken()),
        HeadClass(f"{name}ForTokenClassification", TOKENS, tagging, tagging_form),
        question_answering(f"{name}ForQuestionAnswering", heads.EachDecoderToken(dropout_rate=0.0), **prefixes),
    )


# Frequencies of the rotations, which old versions of transformers wrote.
_IGNORED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")

FAMILY = Family(
    model_types=("llama", "mistral"),
    config_class=LlamaConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    sentencepiece="tokenizer.model",
    head_classes=head_classes,
    prefix="model.",
    free_fields=("max_length", "model_type"),  # parameters do not depend on them
    name_substitutions=((rf"^{re.escape(rotary_decoders.ANSWERING_PREFIX)}", "model."),),
    ignored=_IGNORED,
    tied=rotary_decoders.tied,
)
