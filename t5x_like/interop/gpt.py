"""GPT and GPT-2 as transformers stores them (`OpenAIGPTLMHeadModel`, `GPT2LMHeadModel`)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, special_token_fields
from t5x_like.interop.tables import Family, TensorMapping, dense, norm
from t5x_like.models.gpt import GPTConfig

_NAMES = {
    # ours: theirs
    "vocab_size": "vocab_size",
    "embed_dim": "n_embd",
    "num_heads": "n_head",
    "num_layers": "n_layer",
    "max_length": "n_positions",
    "dropout_rate": "resid_pdrop",
    "attention_dropout_rate": "attn_pdrop",
    "norm_epsilon": "layer_norm_epsilon",
}
# What transformers assumes of a config.json that does not say.
_DEFAULTS = {
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "resid_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}
_DEFAULTS_OF = {
    "gpt2": {"vocab_size": 50257, "n_positions": 1024, "activation_function": "gelu_new"},
    "openai-gpt": {"vocab_size": 40478, "n_positions": 512, "afn": "gelu"},
}
# Their names of our activations, those that we write first. GPT's `gelu` means the tanh form, GPT-2's the erf form.
_ACTIVATIONS = {
    "gpt2": {
        "gelu_new": "gelu",
        "gelu_pytorch_tanh": "gelu",
        "gelu": "gelu_exact",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
    },
    "openai-gpt": {"gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu"},
}
_ACTIVATION_KEY = {"gpt2": "activation_function", "openai-gpt": "afn"}
# What a config.json may switch on or off that there is one way of here.
_FIXED = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}


def config_from_huggingface(hf_config: Mapping[str, Any]) -> GPTConfig:
    """The configuration that a config.json describes; `dtype` and layout are left to the platform.

    Dropout of the embeddings, which has a rate of its own there, is that of the residuals.

    Raises:
      UserError: a value is of another type, or not supported.
    """
    kind = hf_config["model_type"]
    hf_config = fields.with_defaults(hf_config, _DEFAULTS, _DEFAULTS_OF[kind])
    fields.check_fixed(hf_config, _FIXED)
    head_dim = fields.head_dim(hf_config, "n_embd", "n_head")
    hf_config.setdefault("n_inner", 4 * hf_config["n_embd"])
    return GPTConfig(
        head_dim=head_dim,
        activations=(fields.choice(hf_config, _ACTIVATION_KEY[kind], _ACTIVATIONS[kind]),),
        norm_position="pre" if kind == "gpt2" else "post",
        **fields.values(
            hf_config, _NAMES | {"mlp_dim": "n_inner", "tied_embeddings": "tie_word_embeddings"}, GPTConfig
        ),
    )


def config_to_huggingface(config: GPTConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """The contents of a config.json.

    Raises:
      UserError: transformers has no such network.
    """
    kind = _kind(config)
    named = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS[kind].items())}
    wrong = None
    if config.num_heads * config.head_dim != config.embed_dim:
        wrong = f"heads that are not embed_dim={config.embed_dim} wide together"
    elif config.attention_windows != (None,):
        wrong = f"attention_windows={config.attention_windows}"
    elif len(config.activations) > 1 or config.activations[0] not in named:
        wrong = f"activations={config.activations}"
    elif kind == "openai-gpt" and config.mlp_dim != 4 * config.embed_dim:
        wrong = f"mlp_dim={config.mlp_dim} that is not four times embed_dim={config.embed_dim}"
    if wrong:
        raise UserError(f"transformers' {kind} has no {wrong}")
    return {
        "architectures": ["GPT2LMHeadModel" if kind == "gpt2" else "OpenAIGPTLMHeadModel"],
        "model_type": kind,
        _ACTIVATION_KEY[kind]: named[config.activations[0]],
        "embd_pdrop": config.dropout_rate,
        "tie_word_embeddings": config.tied_embeddings,
        "torch_dtype": "float32",
        # Not known: transformers' defaults for the family hold.
        **special_token_fields.to_json(config.special_tokens, {}),
        **({"n_inner": config.mlp_dim} if kind == "gpt2" else {}),
        **{theirs: getattr(config, ours) for ours, theirs in _NAMES.items()},
    }


def _kind(config: GPTConfig) -> str:
    return "gpt2" if config.norm_position == "pre" else "openai-gpt"


def table(config: GPTConfig) -> list[TensorMapping]:
    """Every tensor of a GPT or a GPT-2."""
    gpt2 = config.norm_position == "pre"
    ours, theirs = "model/decoder/layers", "transformer.h.{i}"
    rows = [
        TensorMapping(
            "model/token_embedder/embedding", "transformer.wte.weight" if gpt2 else "transformer.tokens_embed.weight"
        ),
        TensorMapping(
            "model/position_embedder/embedding",
            "transformer.wpe.weight" if gpt2 else "transformer.positions_embed.weight",
        ),
        *norm(f"{ours}/attention_norm", f"{theirs}.ln_1"),
        *norm(f"{ours}/mlp_norm", f"{theirs}.ln_2"),
        *dense(f"{ours}/attention/out", f"{theirs}.attn.c_proj", layout="conv1d", input_dims=2),
        *dense(f"{ours}/mlp/wi", f"{theirs}.mlp.c_fc", layout="conv1d"),
        *dense(f"{ours}/mlp/wo", f"{theirs}.mlp.c_proj", layout="conv1d"),
    ]
    for k, name in enumerate(("query", "key", "value")):  # one tensor there
        rows += [
            TensorMapping(f"{ours}/attention/{name}/kernel", f"{theirs}.attn.c_attn.weight", "conv1d", part=(k, 3)),
            TensorMapping(f"{ours}/attention/{name}/bias", f"{theirs}.attn.c_attn.bias", "flat", part=(k, 3)),
        ]
    if gpt2:
        rows += norm("model/decoder/norm", "transformer.ln_f")
    return rows if config.tied_embeddings else [*rows, *dense("model/logits", "lm_head", bias=False)]


def tied(config: GPTConfig) -> dict[str, str]:
    """Their logits, where they are a copy of the embeddings."""
    embeddings = table(config)[0].hf_name
    return {"lm_head.weight": embeddings} if config.tied_embeddings else {}


# Causal masks and positions that old versions of transformers wrote.
_IGNORED = re.compile(r"transformer\.(h\.\d+\.attn\.(bias|masked_bias)|position_ids)")

FAMILY = Family(
    model_types=("gpt2", "openai-gpt"),
    config_class=GPTConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    prefix="transformer.",
    ignored=_IGNORED,
    tied=tied,
)
