"""BART as transformers stores it (`BartForConditionalGeneration`, `BartModel`)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, special_token_fields
from t5x_like.interop.tables import Family, TensorMapping, dense, norm
from t5x_like.models.bart import BartConfig

_NAMES = {
    # ours: theirs
    "vocab_size": "vocab_size",
    "embed_dim": "d_model",
    "mlp_dim": "encoder_ffn_dim",
    "num_heads": "encoder_attention_heads",
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "max_length": "max_position_embeddings",
    "dropout_rate": "dropout",
    "attention_dropout_rate": "attention_dropout",
}
# Fields of the decoder -> of the encoder, whose value they must have: here both stacks have the same sizes.
_SAME = {"decoder_ffn_dim": "encoder_ffn_dim", "decoder_attention_heads": "encoder_attention_heads"}
# What transformers assumes of a config.json that does not say.
_DEFAULTS = {
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.0,
}
# Those of BART's own vocabulary.
_SPECIAL_TOKENS = {
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
# What would be another network, with the only value that is this one. Not read are rates of dropout that there is none
# of here: within feed-forward blocks, of whole layers, of a classifier.
_FIXED = {"scale_embedding": False, "tie_word_embeddings": True}
# The same, of files older than transformers' present code, which does not look at them.
_FIXED_OF_OLD_FILES = {
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "normalize_before": False,
    "normalize_embedding": True,
    "static_position_embeddings": False,
}
# Their names of activations; a bare `gelu` is the exact form.
_ACTIVATIONS = {"gelu": "gelu_exact", "gelu_new": "gelu", "relu": "relu", "silu": "silu"}
# Constants of transformers' code, which its config.json does not hold.
_POSITION_OFFSET, _NORM_EPSILON = 2, 1e-5


def config_from_huggingface(hf_config: Mapping[str, Any]) -> BartConfig:
    """The configuration that a config.json describes; `dtype` and layout are left to the platform.

    Raises:
      UserError: a value is missing, of another type, or not supported.
    """
    hf_config = fields.with_defaults(hf_config, _DEFAULTS)
    found = fields.values(hf_config, _NAMES, BartConfig)
    fields.check_fixed(hf_config, _FIXED | _FIXED_OF_OLD_FILES)
    fields.check_fixed(hf_config, {decoder: hf_config[encoder] for decoder, encoder in _SAME.items()})
    return BartConfig(
        head_dim=fields.head_dim(hf_config, "d_model", "encoder_attention_heads"),
        position_offset=_POSITION_OFFSET,
        norm_epsilon=_NORM_EPSILON,
        activations=(fields.choice(hf_config, "activation_function", _ACTIVATIONS),),
        **found,
    )


def config_to_huggingface(config: BartConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """The contents of a config.json.

    Raises:
      UserError: transformers has no such network.
    """
    names = {(ours,): theirs for theirs, ours in _ACTIVATIONS.items()}
    if config.activations not in names:
        raise UserError(f"transformers' BART has no block with activations {config.activations}")
    if config.num_heads * config.head_dim != config.embed_dim:
        raise UserError(
            f"transformers' BART has heads of embed_dim / num_heads = {config.embed_dim} / {config.num_heads}, not of "
            f"head_dim={config.head_dim}"
        )
    for name, only in (("position_offset", _POSITION_OFFSET), ("norm_epsilon", _NORM_EPSILON)):
        if getattr(config, name) != only:
            raise UserError(f"transformers' BART has {name}={only} alone, not {getattr(config, name)}")
    hf_config = {theirs: getattr(config, ours) for ours, theirs in _NAMES.items()}
    return {
        "architectures": ["BartForConditionalGeneration"],
        "model_type": "bart",
        "is_encoder_decoder": True,
        "activation_function": names[config.activations],
        "torch_dtype": "float32",
        **special_token_fields.to_json(config.special_tokens, _SPECIAL_TOKENS),
        **_FIXED,
        **hf_config,
        **{decoder: hf_config[encoder] for decoder, encoder in _SAME.items()},
    }


def table(config: BartConfig) -> list[TensorMapping]:
    """Every tensor of a BART."""
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
    """The tensors of a stack; its attention blocks by our name, with their names of the block and of its norm."""
    ours, theirs = f"model/{stack}/layers", f"model.{stack}.layers.{{i}}"
    rows = [
        TensorMapping(f"model/{stack}_input/position_embedder/embedding", f"model.{stack}.embed_positions.weight"),
        *norm(f"model/{stack}_input/norm", f"model.{stack}.layernorm_embedding"),
    ]
    for block, (their_block, their_norm) in attentions.items():
        rows += norm(f"{ours}/{block}_norm", f"{theirs}.{their_norm}")
        for name, other in {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}.items():
            rows += dense(
                f"{ours}/{block}/{name}", f"{theirs}.{their_block}.{other}", input_dims=2 if name == "out" else 1
            )
    rows += dense(f"{ours}/mlp/wi", f"{theirs}.fc1") + dense(f"{ours}/mlp/wo", f"{theirs}.fc2")
    return rows + norm(f"{ours}/mlp_norm", f"{theirs}.final_layer_norm")


FAMILY = Family(
    model_types=("bart",),
    config_class=BartConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    prefix="model.",
    # Marks of fairseq's files, and the heads of what was fine-tuned to classify or to answer questions.
    ignored=re.compile(r"model\.(encoder|decoder)\.version|(classification_head\.(dense|out_proj)|qa_outputs)\..*"),
    must_be_zero=re.compile(r"final_logits_bias"),
    tied=lambda config: {
        name: "model.shared.weight"
        for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    },
)
