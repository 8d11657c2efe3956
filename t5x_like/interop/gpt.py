"""Maps GPT and GPT-2, with logits or with the heads of classification, to transformers."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, special_token_fields
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, question_answering, tagging_form
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.models.gpt import GPTConfig
from t5x_like.objectives import heads
from t5x_like.objectives.gpt1_finetuning import ExtractToken

_NAMES = {
    # field of the configuration: key of config.json
    "vocab_size": "vocab_size",
    "embed_dim": "n_embd",
    "num_heads": "n_head",
    "num_layers": "n_layer",
    "max_length": "n_positions",
    "dropout_rate": "resid_pdrop",
    "attention_dropout_rate": "attn_pdrop",
    "norm_epsilon": "layer_norm_epsilon",
}
# Defaults of transformers for missing keys.
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
# Activation in transformers -> activation here. The first name of each activation is written. `gelu` is the tanh
# approximation in GPT and exact GELU in GPT-2.
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
# Keys with one supported value.
_FIXED = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}


def config_from_huggingface(hf_config: Mapping[str, Any]) -> GPTConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`.

    The dropout rate of the embeddings, separate in transformers, equals the rate of the residual connections.

    Raises:
      UserError: a value has the wrong type, or is not supported.
    """
    model_type = hf_config["model_type"]
    hf_config = fields.with_defaults(hf_config, _DEFAULTS, _DEFAULTS_OF[model_type])
    fields.check_fixed(hf_config, _FIXED)
    head_dim = fields.head_dim(hf_config, "n_embd", "n_head")
    hf_config.setdefault("n_inner", 4 * hf_config["n_embd"])
    return GPTConfig(
        head_dim=head_dim,
        activations=(fields.choice(hf_config, _ACTIVATION_KEY[model_type], _ACTIVATIONS[model_type]),),
        norm_position="pre" if model_type == "gpt2" else "post",
        **fields.values(
            hf_config, _NAMES | {"mlp_dim": "n_inner", "tied_embeddings": "tie_word_embeddings"}, GPTConfig
        ),
    )


def config_to_huggingface(config: GPTConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    model_type = _model_type(config)
    names = {activation: hf_name for hf_name, activation in reversed(_ACTIVATIONS[model_type].items())}
    unsupported = None
    if config.num_heads * config.head_dim != config.embed_dim:
        unsupported = (
            f"num_heads={config.num_heads} and head_dim={config.head_dim} whose product is not "
            f"embed_dim={config.embed_dim}"
        )
    elif config.attention_windows != (None,):
        unsupported = f"attention_windows={config.attention_windows}"
    elif len(config.activations) > 1 or config.activations[0] not in names:
        unsupported = f"activations={config.activations}"
    elif model_type == "openai-gpt" and config.mlp_dim != 4 * config.embed_dim:
        unsupported = f"mlp_dim={config.mlp_dim} that is not 4 · embed_dim = {4 * config.embed_dim}"
    if unsupported:
        raise UserError(f"transformers' {model_type} does not support {unsupported}")
    return {
        "architectures": ["GPT2LMHeadModel" if model_type == "gpt2" else "OpenAIGPTLMHeadModel"],
        "model_type": model_type,
        _ACTIVATION_KEY[model_type]: names[config.activations[0]],
        "embd_pdrop": config.dropout_rate,
        "tie_word_embeddings": config.tied_embeddings,
        "torch_dtype": "float32",
        # Without imported ids, the family's defaults in transformers apply.
        **special_token_fields.to_json(config.special_tokens, {}),
        **({"n_inner": config.mlp_dim} if model_type == "gpt2" else {}),
        **{key: getattr(config, field) for field, key in _NAMES.items()},
    }


def _model_type(config: GPTConfig) -> str:
    return "gpt2" if config.norm_position == "pre" else "openai-gpt"


def table(config: GPTConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor."""
    gpt2 = config.norm_position == "pre"
    layers, hf_layers = "model/decoder/layers", "transformer.h.{i}"
    mappings = [
        TensorMapping(
            "model/token_embedder/embedding", "transformer.wte.weight" if gpt2 else "transformer.tokens_embed.weight"
        ),
        TensorMapping(
            "model/position_embedder/embedding",
            "transformer.wpe.weight" if gpt2 else "transformer.positions_embed.weight",
        ),
        *norm(f"{layers}/attention_norm", f"{hf_layers}.ln_1"),
        *norm(f"{layers}/mlp_norm", f"{hf_layers}.ln_2"),
        *dense(f"{layers}/attention/out", f"{hf_layers}.attn.c_proj", layout="conv1d", input_dims=2),
        *dense(f"{layers}/mlp/wi", f"{hf_layers}.mlp.c_fc", layout="conv1d"),
        *dense(f"{layers}/mlp/wo", f"{hf_layers}.mlp.c_proj", layout="conv1d"),
    ]
    for k, name in enumerate(("query", "key", "value")):  # transformers has one tensor for the three
        mappings += [
            TensorMapping(
                f"{layers}/attention/{name}/kernel", f"{hf_layers}.attn.c_attn.weight", "conv1d", part=(k, 3)
            ),
            TensorMapping(f"{layers}/attention/{name}/bias", f"{hf_layers}.attn.c_attn.bias", "flat", part=(k, 3)),
        ]
    if gpt2:
        mappings += norm("model/decoder/norm", "transformer.ln_f")
    return mappings if config.tied_embeddings else [*mappings, *dense("model/logits", "lm_head", bias=False)]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    score = tuple(dense(f"{OBJECTIVE}{SEQUENCE}/classifier", "score", bias=False))
    if hf_config["model_type"] == "openai-gpt":
        return (
            HeadClass("OpenAIGPTForSequenceClassification", SEQUENCE, score, lambda hf_config: heads.LastToken()),
            _double_heads("OpenAIGPTDoubleHeadsModel"),
        )
    tagging = tuple(dense(f"{OBJECTIVE}{TOKENS}/classifier", "classifier"))
    return (
        HeadClass("GPT2ForSequenceClassification", SEQUENCE, score, lambda hf_config: heads.LastToken()),
        HeadClass("GPT2ForTokenClassification", TOKENS, tagging, tagging_form),
        question_answering("GPT2ForQuestionAnswering", heads.EachDecoderToken(dropout_rate=0.0)),
        _double_heads("GPT2DoubleHeadsModel"),
    )


# Keys of config.json that describe the head for multiple choice, with transformers' defaults, which are supported.
_SUMMARY = {
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "summary_activation": None,
    "summary_proj_to_labels": True,
}


def _double_heads(name: str) -> HeadClass:
    """Returns a class with the logits of the language model and a head for multiple choice."""
    return HeadClass(
        *(name, CHOICES, tuple(dense(f"{OBJECTIVE}{CHOICES}/classifier", "multiple_choice_head.summary"))),
        form=_extract_token,
        has_labels=False,
        has_logits=True,
        dropout_key="summary_first_dropout",
    )


def _extract_token(hf_config: Mapping[str, Any]) -> heads.HeadForm:
    fields.check_fixed(hf_config, _SUMMARY)
    rate = hf_config.get("summary_first_dropout")
    return ExtractToken() if rate is None else ExtractToken(dropout_rate=rate)


def tied(config: GPTConfig) -> dict[str, str]:
    """Returns the copy of the embeddings that is the kernel of tied logits."""
    embeddings = table(config)[0].hf_name
    return {"lm_head.weight": embeddings} if config.tied_embeddings else {}


# Causal masks and positions, which old versions of transformers wrote.
_IGNORED = re.compile(r"transformer\.(h\.\d+\.attn\.(bias|masked_bias)|position_ids)")

FAMILY = Family(
    model_types=("gpt2", "openai-gpt"),
    config_class=GPTConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix="transformer.",
    ignored=_IGNORED,
    tied=tied,
)
