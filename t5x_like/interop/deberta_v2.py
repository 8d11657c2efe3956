"""Maps DeBERTa v2 and v3 to transformers, with the heads of pretraining and of downstream tasks.

The head of replaced tokens has the names of the released code, `mask_predictions`, which transformers ignores.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.interop import deberta, fields
from t5x_like.interop.bert import ACTIVATIONS
from t5x_like.interop.head_classes import CHOICES
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.models.deberta_v2 import DebertaV2Config
from t5x_like.objectives import discriminators

# Keys with one supported value.
_FIXED = {"share_att_key": True, "norm_rel_ebd": "layer_norm", "conv_groups": 1}
_CONFIG = dataclasses.replace(
    deberta.CONFIG,
    config_class=DebertaV2Config,
    model_type="deberta-v2",
    defaults={
        **deberta.CONFIG.defaults,
        "position_buckets": -1,
        "share_att_key": False,
        "norm_rel_ebd": "none",
        "conv_kernel_size": 0,
        "conv_act": "tanh",
    },
    refused={**deberta.CONFIG.refused, **_FIXED},
    classes={(): "DebertaV2Model"},
)
_REPLACED_TOKENS = f"{OBJECTIVE}{discriminators.NAME}"


def config_from_huggingface(hf_config: Mapping[str, Any]) -> DebertaV2Config:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = _CONFIG.with_defaults(hf_config)
    found = deberta.common_fields(_CONFIG, hf_config)
    fields.check_fixed(hf_config, {"attention_head_size": found["head_dim"]})
    if hf_config["conv_kernel_size"]:
        found["conv_size"] = fields.size(hf_config, "conv_kernel_size")
        found["conv_activation"] = fields.choice(hf_config, "conv_act", ACTIVATIONS)
    return DebertaV2Config(position_buckets=fields.size(hf_config, "position_buckets"), **found)


def config_to_huggingface(config: DebertaV2Config, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    found = deberta.common_keys(_CONFIG, config, heads)
    found |= {**_FIXED, "position_buckets": config.position_buckets}
    if not config.conv_size:
        found.pop("conv_groups")
        return found
    activation = fields.activation_name((config.conv_activation,), ACTIVATIONS, "DeBERTa")
    return found | {"conv_kernel_size": config.conv_size, "conv_act": activation}


def table(config: DebertaV2Config) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the heads of pretraining."""
    layer, hf_layer = "model/encoder/layers", "deberta.encoder.layer.{i}"
    convolution = [
        TensorMapping("model/convolution/kernel", "deberta.encoder.conv.conv.weight", "reversed"),
        TensorMapping("model/convolution/bias", "deberta.encoder.conv.conv.bias"),
        *norm("model/convolution/norm", "deberta.encoder.conv.LayerNorm"),
    ]
    projections = [
        mapping
        for name in ("query", "key", "value")
        for mapping in dense(f"{layer}/attention/{name}", f"{hf_layer}.attention.self.{name}_proj")
    ]
    return [
        *deberta.embeddings(config),
        *norm("model/relative_norm", "deberta.encoder.LayerNorm"),
        *(convolution if config.conv_size else ()),
        *projections,
        *deberta.after_attention(layer, hf_layer),
        *deberta.masked_lm_head(),
        *dense(f"{_REPLACED_TOKENS}/dense", "mask_predictions.dense"),
        *norm(f"{_REPLACED_TOKENS}/norm", "mask_predictions.LayerNorm"),
        *dense(f"{_REPLACED_TOKENS}/classifier", "mask_predictions.classifier"),
    ]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    choices = deberta.pooled_class("DebertaV2ForMultipleChoice", CHOICES, has_labels=False)
    return (*deberta.head_classes("DebertaV2")(hf_config), choices)


FAMILY = Family(
    model_types=("deberta-v2",),
    config_class=DebertaV2Config,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix="deberta.",
    name_substitutions=deberta.RELEASED_HEAD,
    ignored=deberta.IGNORED,
    tied=deberta.tied,
    sentencepiece="spm.model",
)
