"""BERT and RoBERTa as transformers stores them, with the masked-LM and next-sentence heads.

The configuration says which: positions that start after 0 are RoBERTa's. The pooler goes with the next-sentence head,
which RoBERTa has none of: transformers' `RobertaModel` has one that was never trained.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, special_token_fields
from t5x_like.interop.tables import OBJECTIVE, Family, TensorMapping, dense, norm
from t5x_like.models.bert import BertConfig

_NAMES = {
    # ours: theirs
    "vocab_size": "vocab_size",
    "embed_dim": "hidden_size",
    "mlp_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "num_token_types": "type_vocab_size",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
}
# What transformers assumes of a config.json that does not say.
_DEFAULTS = {
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
}
_PADDING = {"bert": 0, "roberta": 1}
# What would be another network, with the only value that is this one.
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
# Their names of activations; the first of each is the one that is written.
_ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu": "gelu_exact",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

MASKED_LM, NEXT_SENTENCE = f"{OBJECTIVE}masked_lm", f"{OBJECTIVE}next_sentence"
_POOLER = f"{NEXT_SENTENCE}/pooler/"
# The classes that have these heads, by model type.
_ARCHITECTURES = {
    "bert": {
        (): "BertModel",
        (MASKED_LM,): "BertForMaskedLM",
        (NEXT_SENTENCE,): "BertForNextSentencePrediction",
        (MASKED_LM, NEXT_SENTENCE): "BertForPreTraining",
    },
    "roberta": {(): "RobertaModel", (MASKED_LM,): "RobertaForMaskedLM"},
}


def config_from_huggingface(hf_config: Mapping[str, Any]) -> BertConfig:
    """The configuration that a config.json describes; `dtype` and layout are left to the platform.

    Raises:
      UserError: a value is missing, of another type, or not supported.
    """
    kind = hf_config["model_type"]
    hf_config = fields.with_defaults(hf_config, _DEFAULTS, {"pad_token_id": _PADDING[kind]})
    found = fields.values(hf_config, _NAMES, BertConfig)
    fields.check_fixed(hf_config, _FIXED)
    activation = fields.choice(hf_config, "hidden_act", _ACTIVATIONS)
    if "RobertaForMaskedLM" in fields.strings(hf_config, "architectures"):
        _check_head(activation, f"hidden_act {hf_config['hidden_act']!r}")
    padding = hf_config["pad_token_id"]
    offset = padding + 1 if kind == "roberta" else 0
    return BertConfig(
        head_dim=fields.head_dim(hf_config, "hidden_size", "num_attention_heads"),
        max_length=fields.size(hf_config, "max_position_embeddings") - offset,
        position_offset=offset,
        padding_id=padding,
        activations=(activation,),
        **found,
    )


def config_to_huggingface(config: BertConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """The contents of a config.json.

    Args:
      config: the network's.
      heads: stored names of the heads' tensors.

    Raises:
      UserError: transformers has no such network, or none with these heads.
    """
    names = {(ours,): theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    if config.activations not in names:
        raise UserError(f"transformers' BERT has no block with activations {config.activations}")
    if config.num_heads * config.head_dim != config.embed_dim:
        raise UserError(
            f"transformers' BERT has heads of embed_dim / num_heads = {config.embed_dim} / {config.num_heads}, not of "
            f"head_dim={config.head_dim}"
        )
    kind = _model_type(config)
    if kind == "roberta" and config.padding_id != config.position_offset - 1:
        raise UserError(
            f"transformers counts RoBERTa's positions from the padding token's id + 1: position_offset="
            f"{config.position_offset} needs padding_id={config.position_offset - 1}, not {config.padding_id}"
        )
    architecture = _architecture(kind, heads)
    if architecture == "RobertaForMaskedLM":
        _check_head(config.activations[0], f"the network has activations {config.activations}")
    return {
        "architectures": [architecture],
        "model_type": kind,
        "hidden_act": names[config.activations],
        "max_position_embeddings": config.max_length + config.position_offset,
        "torch_dtype": "float32",
        **_FIXED,
        **_special_tokens(config, kind),
        **{theirs: getattr(config, ours) for ours, theirs in _NAMES.items()},
    }


def _architecture(kind: str, heads: Iterable[str]) -> str:
    """The class of transformers with these heads.

    A pooler alone makes no head: it belongs to `BertModel`, and files of a masked-LM head may hold one too.

    Raises:
      UserError: transformers has no such class.
    """
    heads = set(heads)
    poolers = {name for name in heads if kind == "bert" and name.startswith(_POOLER)}
    present = tuple(sorted({"/".join(name.split("/")[:2]) for name in heads - poolers}))
    if present not in _ARCHITECTURES[kind] or (NEXT_SENTENCE in present and not poolers):
        raise UserError(f"transformers has no {kind} network with just {', '.join(sorted(heads))}")
    return _ARCHITECTURES[kind][present]


def _special_tokens(config: BertConfig, kind: str) -> dict[str, Any]:
    """The ids for config.json; padding is the configuration's own, which RoBERTa's positions depend on."""
    default = {"pad_token_id": config.padding_id}
    if kind == "roberta":
        default |= {"bos_token_id": 0, "eos_token_id": 2}
    tokens = special_token_fields.to_json(config.special_tokens, default)
    stated = tokens.get("pad_token_id")
    if config.padding_id != (_PADDING[kind] if stated is None else stated):
        tokens["pad_token_id"] = config.padding_id
    return tokens


def _check_head(activation: str, found: str) -> None:
    if activation != "gelu_exact":
        raise UserError(
            f"{found}, but transformers' masked-LM head of RoBERTa has the exact GELU whatever that says; the one here "
            "has the network's activation"
        )


def table(config: BertConfig) -> list[TensorMapping]:
    """Every tensor of a BERT or RoBERTa and of the heads."""
    kind = _model_type(config)
    embeddings, layer, here = f"{kind}.embeddings", f"{kind}.encoder.layer.{{i}}", "model/encoder/layers"
    return [
        TensorMapping("model/token_embedder/embedding", f"{embeddings}.word_embeddings.weight"),
        TensorMapping("model/position_embedder/embedding", f"{embeddings}.position_embeddings.weight"),
        TensorMapping("model/token_type_embedder/embedding", f"{embeddings}.token_type_embeddings.weight"),
        *norm("model/embedding_norm", f"{embeddings}.LayerNorm"),
        *dense(f"{here}/attention/query", f"{layer}.attention.self.query"),
        *dense(f"{here}/attention/key", f"{layer}.attention.self.key"),
        *dense(f"{here}/attention/value", f"{layer}.attention.self.value"),
        *dense(f"{here}/attention/out", f"{layer}.attention.output.dense", input_dims=2),
        *norm(f"{here}/attention_norm", f"{layer}.attention.output.LayerNorm"),
        *dense(f"{here}/mlp/wi", f"{layer}.intermediate.dense"),
        *dense(f"{here}/mlp/wo", f"{layer}.output.dense"),
        *norm(f"{here}/mlp_norm", f"{layer}.output.LayerNorm"),
        *(_roberta_heads() if kind == "roberta" else _bert_heads()),
    ]


def _bert_heads() -> list[TensorMapping]:
    return [
        *dense(f"{MASKED_LM}/dense", "cls.predictions.transform.dense"),
        *norm(f"{MASKED_LM}/norm", "cls.predictions.transform.LayerNorm"),
        TensorMapping(f"{MASKED_LM}/bias", "cls.predictions.bias"),
        *dense(f"{NEXT_SENTENCE}/pooler", "bert.pooler.dense"),
        *dense(f"{NEXT_SENTENCE}/classifier", "cls.seq_relationship"),
    ]


def _roberta_heads() -> list[TensorMapping]:
    return [
        *dense(f"{MASKED_LM}/dense", "lm_head.dense"),
        *norm(f"{MASKED_LM}/norm", "lm_head.layer_norm"),
        TensorMapping(f"{MASKED_LM}/bias", "lm_head.bias"),
    ]


def _tied(config: BertConfig) -> dict[str, str]:
    kind, head = ("roberta", "lm_head") if _model_type(config) == "roberta" else ("bert", "cls.predictions")
    return {
        f"{head}.decoder.weight": f"{kind}.embeddings.word_embeddings.weight",
        f"{head}.decoder.bias": f"{head}.bias",
    }


def _model_type(config: BertConfig) -> str:
    return "roberta" if config.position_offset else "bert"


FAMILY = Family(
    model_types=("bert", "roberta"),
    config_class=BertConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    prefix=("bert.", "roberta."),
    # As the first files, converted from TensorFlow, spell them.
    name_substitutions=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    ignored=re.compile(
        r"(bert|roberta)\.embeddings\.(position_ids|token_type_ids)|roberta\.pooler\.dense\.(weight|bias)"
    ),
    tied=_tied,
)
