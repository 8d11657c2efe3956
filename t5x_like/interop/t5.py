"""T5 as transformers stores it (`T5ForConditionalGeneration`)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, special_token_fields
from t5x_like.interop.tables import Family, TensorMapping, dense, norm
from t5x_like.models.t5 import T5Config

_NAMES = {
    # ours: theirs
    "vocab_size": "vocab_size",
    "embed_dim": "d_model",
    "mlp_dim": "d_ff",
    "num_heads": "num_heads",
    "head_dim": "d_kv",
    "encoder_layers": "num_layers",
    "decoder_layers": "num_decoder_layers",
    "tied_embeddings": "tie_word_embeddings",
    "dropout_rate": "dropout_rate",
    "relpos_buckets": "relative_attention_num_buckets",
    "relpos_max_distance": "relative_attention_max_distance",
    "norm_epsilon": "layer_norm_epsilon",
}
# What transformers assumes of a config.json that does not say.
_DEFAULTS = {
    "tie_word_embeddings": True,
    "dropout_rate": 0.1,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
}
# Those of T5's own vocabulary.
_SPECIAL_TOKENS = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
# Their names of feed-forward blocks; `gated-gelu` means the tanh form there, a bare `gelu` the erf form, which T5
# never had.
_ACTIVATIONS = {
    "relu": ("relu",),
    "gelu_new": ("gelu",),
    "gated-gelu": ("gelu", "linear"),
    "gated-gelu_new": ("gelu", "linear"),
    "gated-relu": ("relu", "linear"),
}


def config_from_huggingface(hf_config: Mapping[str, Any]) -> T5Config:
    """The configuration that a config.json describes; `dtype` and layout are left to the platform.

    Raises:
      UserError: a value is missing, of another type, or not supported.
    """
    hf_config = fields.with_defaults(hf_config, _DEFAULTS)
    hf_config.setdefault("num_decoder_layers", hf_config.get("num_layers"))
    return T5Config(
        activations=fields.choice(hf_config, "feed_forward_proj", _ACTIVATIONS),
        **fields.values(hf_config, _NAMES, T5Config),
    )


def config_to_huggingface(config: T5Config, heads: Iterable[str] = ()) -> dict[str, Any]:
    """The contents of a config.json.

    Raises:
      UserError: transformers has no such feed-forward block.
    """
    names = {activations: name for name, activations in reversed(_ACTIVATIONS.items())}
    if config.activations not in names:
        raise UserError(f"transformers' T5 has no block with activations {config.activations}")
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "feed_forward_proj": names[config.activations],
        "torch_dtype": "float32",
        **special_token_fields.to_json(config.special_tokens, _SPECIAL_TOKENS),
        **{theirs: getattr(config, ours) for ours, theirs in _NAMES.items()},
    }


def table(config: T5Config) -> list[TensorMapping]:
    """Every tensor of a T5."""
    gated = len(config.activations) > 1
    rows = [
        TensorMapping("model/token_embedder/embedding", "shared.weight"),
        *_stack("encoder", {"attention": "SelfAttention", "mlp": "DenseReluDense"}, gated),
        *_stack(
            "decoder",
            {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention", "mlp": "DenseReluDense"},
            gated,
        ),
    ]
    return rows if config.tied_embeddings else [*rows, *dense("model/logits", "lm_head", bias=False)]


def _stack(stack: str, blocks: Mapping[str, str], gated: bool) -> list[TensorMapping]:
    """The tensors of a stack; its blocks by our name and by theirs, in order."""
    rows = [
        TensorMapping(
            f"model/{stack}/relative_bias/table",
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "linear",
        ),
        *norm(f"model/{stack}/norm", f"{stack}.final_layer_norm", bias=False),
    ]
    for position, (ours, theirs) in enumerate(blocks.items()):
        inside, there = f"model/{stack}/layers/{ours}", f"{stack}.block.{{i}}.layer.{position}"
        rows += norm(f"{inside}_norm", f"{there}.layer_norm", bias=False)
        if ours == "mlp":
            names = {name: name for name in (("wi_0", "wi_1", "wo") if gated else ("wi", "wo"))}
        else:
            names = {"query": "q", "key": "k", "value": "v", "out": "o"}
        for name, other in names.items():
            input_dims = 2 if name == "out" else 1
            rows += dense(f"{inside}/{name}", f"{there}.{theirs}.{other}", bias=False, input_dims=input_dims)
    return rows


# Copies of the embeddings, and a table that old versions of transformers wrote and nobody read.
_IGNORED = re.compile(
    r"(encoder|decoder)\.embed_tokens\.weight"
    r"|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
)

FAMILY = Family(
    model_types=("t5",),
    config_class=T5Config,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    ignored=_IGNORED,
    tied=lambda config: {"lm_head.weight": "shared.weight"} if config.tied_embeddings else {},
)
