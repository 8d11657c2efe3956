"""Maps GPT and GPT-2, with logits or with the heads of classification, to transformers."""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, question_answering, tagging_form
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.models.gpt import GPTConfig
from t5x_like.objectives import heads
from t5x_like.objectives.gpt1_finetuning import ExtractToken

_GPT2 = ConfigMap(
    config_class=GPTConfig,
    model="GPT-2",
    model_type="gpt2",
    keys={
        "mlp_dim": "n_inner",
        "vocab_size": ("vocab_size", 50257),
        "embed_dim": ("n_embd", 768),
        "num_heads": ("n_head", 12),
        "num_layers": ("n_layer", 12),
        "max_length": ("n_positions", 1024),
        "dropout_rate": ("resid_pdrop", 0.1),
        "attention_dropout_rate": ("attn_pdrop", 0.1),
        "norm_epsilon": ("layer_norm_epsilon", 1e-5),
        "tied_embeddings": ("tie_word_embeddings", True),
    },
    defaults={"activation_function": "gelu_new"},
    refused={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    required={"attention_windows": (None,), "norm_position": "pre"},
    activations={
        "gelu_new": "gelu",
        "gelu_pytorch_tanh": "gelu",
        "gelu": "gelu_exact",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
    },
    activation_key="activation_function",
    classes={(): "GPT2LMHeadModel"},
    first=("architectures", "model_type", "activation_function", "embd_pdrop", "tie_word_embeddings"),
)
_GPT = dataclasses.replace(
    _GPT2,
    model="GPT",
    model_type="openai-gpt",
    keys=_GPT2.keys | {"vocab_size": ("vocab_size", 40478), "max_length": ("n_positions", 512)},
    defaults={"afn": "gelu"},
    required={"attention_windows": (None,), "norm_position": "post"},
    # `gelu` is the tanh approximation, which is exact GELU in GPT-2.
    activations={"gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu"},
    activation_key="afn",
    classes={(): "OpenAIGPTLMHeadModel"},
    first=("architectures", "model_type", "afn", "embd_pdrop", "tie_word_embeddings"),
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> GPTConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`.

    The dropout rate of the embeddings, separate in transformers, equals the rate of the residual connections.

    Raises:
      UserError: a value has the wrong type, or is not supported.
    """
    entries = _GPT2 if hf_config["model_type"] == "gpt2" else _GPT
    hf_config = entries.with_defaults(hf_config)
    hf_config.setdefault("n_inner", 4 * fields.size(hf_config, "n_embd"))
    return GPTConfig(**entries.read(hf_config))


def config_to_huggingface(config: GPTConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    entries = _GPT2 if config.norm_position == "pre" else _GPT
    # Without imported special tokens, the defaults of the family in transformers apply.
    found = entries.to_json(config, embd_pdrop=config.dropout_rate)
    if entries is _GPT and found.pop("n_inner") != 4 * config.embed_dim:
        raise UserError(
            f"mlp_dim={config.mlp_dim}: not supported by transformers' GPT, which requires 4 · embed_dim = "
            f"{4 * config.embed_dim}"
        )
    return found


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
