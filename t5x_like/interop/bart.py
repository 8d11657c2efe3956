"""Maps BART to transformers' `BartForConditionalGeneration`, `BartModel` and `BartForSequenceClassification`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.interop import fields
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import SEQUENCE, dropout_rate, head_table, question_answering
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.models.bart import BartConfig
from t5x_like.objectives import heads

# Ids in BART's vocabulary.
_SPECIAL_TOKENS = {
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
# Key of the decoder -> key of the encoder with the same value, since both stacks have the same sizes.
_DECODER_KEYS = {"decoder_ffn_dim": "encoder_ffn_dim", "decoder_attention_heads": "encoder_attention_heads"}
# Keys with one supported value. The dropout rates of activations and layers are ignored, because the model
# does not have them.
_FIXED = {"scale_embedding": False, "tie_word_embeddings": True}
# Keys of old files with one supported value. Current versions of transformers do not read them.
_FIXED_OF_OLD_FILES = {
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "normalize_before": False,
    "normalize_embedding": True,
    "static_position_embeddings": False,
}

_CONFIG = ConfigMap(
    config_class=BartConfig,
    model="BART",
    model_type="bart",
    keys={
        "vocab_size": "vocab_size",
        "embed_dim": "d_model",
        "mlp_dim": "encoder_ffn_dim",
        "num_heads": "encoder_attention_heads",
        "encoder_layers": "encoder_layers",
        "decoder_layers": "decoder_layers",
        "max_length": ("max_position_embeddings", 1024),
        "dropout_rate": ("dropout", 0.1),
        "attention_dropout_rate": ("attention_dropout", 0.0),
    },
    defaults={"activation_function": "gelu"},
    refused=_FIXED | _FIXED_OF_OLD_FILES,
    required={"position_offset": 2, "norm_epsilon": 1e-5},
    # `gelu` of transformers is exact GELU.
    activations={"gelu": "gelu_exact", "gelu_new": "gelu", "relu": "relu", "silu": "silu"},
    activation_key="activation_function",
    classes={(): "BartForConditionalGeneration"},
    tokens=_SPECIAL_TOKENS,
    first=("architectures", "model_type", "is_encoder_decoder"),
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> BartConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = _CONFIG.with_defaults(hf_config)
    found = _CONFIG.read(hf_config)
    fields.check_fixed(hf_config, {decoder: hf_config[encoder] for decoder, encoder in _DECODER_KEYS.items()})
    return BartConfig(**found)


def config_to_huggingface(config: BartConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    found = _CONFIG.to_json(config, is_encoder_decoder=True, **_FIXED)
    return found | {decoder: found[encoder] for decoder, encoder in _DECODER_KEYS.items()}


def table(config: BartConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor."""
    attention = {"attention": ("self_attn", "self_attn_layer_norm")}
    attentions = {
        "self_attention": ("self_attn", "self_attn_layer_norm"),
        "cross_attention": ("encoder_attn", "encoder_attn_layer_norm"),
    }
    return [
        TensorMapping("model/token_embedder/embedding", "model.shared.weight"),
        *_stack("encoder", attention),
        *_stack("decoder", attentions),
    ]


def _stack(stack: str, attentions: Mapping[str, tuple[str, str]]) -> list[TensorMapping]:
    """Returns the mappings of a stack; `attentions` has each block's name, and its and its norm's in transformers."""
    layers, hf_layers = f"model/{stack}/layers", f"model.{stack}.layers.{{i}}"
    mappings = [
        TensorMapping(f"model/{stack}_input/position_embedder/embedding", f"model.{stack}.embed_positions.weight"),
        *norm(f"model/{stack}_input/norm", f"model.{stack}.layernorm_embedding"),
    ]
    for block, (hf_block, hf_norm) in attentions.items():
        mappings += norm(f"{layers}/{block}_norm", f"{hf_layers}.{hf_norm}")
        for name, hf_name in {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}.items():
            mappings += dense(
                f"{layers}/{block}/{name}", f"{hf_layers}.{hf_block}.{hf_name}", input_dims=2 if name == "out" else 1
            )
    mappings += dense(f"{layers}/mlp/wi", f"{hf_layers}.fc1") + dense(f"{layers}/mlp/wo", f"{hf_layers}.fc2")
    return mappings + norm(f"{layers}/mlp_norm", f"{hf_layers}.final_layer_norm")


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    hf_head = "classification_head"
    classifier = head_table(SEQUENCE, dense=f"{hf_head}.dense", classifier=f"{hf_head}.out_proj")
    bos_id = fields.with_defaults(hf_config, _SPECIAL_TOKENS)["decoder_start_token_id"]
    return (
        HeadClass("BartForSequenceClassification", SEQUENCE, classifier, _form),
        question_answering("BartForQuestionAnswering", heads.EachShiftedToken(bos_id=bos_id, dropout_rate=0.0)),
    )


def _form(hf_config: Mapping[str, Any]) -> heads.HeadForm:
    found = fields.with_defaults(hf_config, _SPECIAL_TOKENS)
    return heads.DecoderLastToken(bos_id=found["decoder_start_token_id"], dropout_rate=dropout_rate(hf_config, 0.0))


FAMILY = Family(
    model_types=("bart",),
    config_class=BartConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    default_tokens=_SPECIAL_TOKENS,
    head_classes=head_classes,
    prefix="model.",
    # Version markers of fairseq, and the heads of models fine-tuned for classification or question answering.
    ignored=re.compile(r"model\.(encoder|decoder)\.version|(classification_head\.(dense|out_proj)|qa_outputs)\..*"),
    must_be_zero=re.compile(r"final_logits_bias"),
    tied=lambda config: {
        name: "model.shared.weight"
        for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    },
)
