"""Maps DeBERTa to transformers, with the masked-LM head and the heads of downstream tasks.

The masked-LM head of the released files has other names, which are read too. The position table of the enhanced mask
decoder, which transformers does not have, is stored under its name in the released files, and transformers ignores it.
A model with this decoder is written as the bare model, since the logits of transformers' `DebertaForMaskedLM`, without
it, would differ.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from absl import logging

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.bert import ACTIVATIONS, MASKED_LM, keys
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import SEQUENCE, TOKENS, dropout_rate, head_table, question_answering
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.models.deberta import DebertaConfig
from t5x_like.objectives import heads

_SCORES = ("c2p", "p2c")
POSITION_TABLE = f"{MASKED_LM}/position_embedder/embedding"
_POOLER_ACTIVATION = "gelu"
CONFIG = ConfigMap(
    config_class=DebertaConfig,
    model="DeBERTa",
    model_type="deberta",
    keys=keys(max_length=512, norm_epsilon=1e-7),
    defaults={
        "hidden_act": "gelu",
        "max_relative_positions": -1,
        "type_vocab_size": 0,
        "pad_token_id": 0,
        "relative_attention": False,
        "position_biased_input": True,
        "pos_att_type": "",
    },
    fixed={"relative_attention": True, "position_biased_input": False},
    refused={"talking_head": False},
    activations=ACTIVATIONS,
    classes={(): "DebertaModel"},
    first=(
        *("architectures", "model_type", "hidden_act", "type_vocab_size", "max_relative_positions", "pos_att_type"),
        *("relative_attention", "position_biased_input", "pooler_dropout", "pooler_hidden_act", "pooler_hidden_size"),
    ),
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> DebertaConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    return DebertaConfig(**common_fields(CONFIG, CONFIG.with_defaults(hf_config)))


def common_fields(entries: ConfigMap, hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that all versions of DeBERTa have.

    Args:
      entries: The table of the version.
      hf_config: contents of config.json with defaults.

    Raises:
      UserError: a setting is not supported.
    """
    scores = hf_config["pos_att_type"]
    listed = scores.lower().split("|") if isinstance(scores, str) else fields.strings(hf_config, "pos_att_type")
    if sorted(name.strip() for name in listed) != sorted(_SCORES):
        raise UserError(f"pos_att_type {scores!r}: not supported. The only supported scores are {'|'.join(_SCORES)!r}.")
    found = entries.read(hf_config)
    if hf_config.get("embedding_size", found["embed_dim"]) != found["embed_dim"]:
        raise UserError(f"embedding_size {hf_config['embedding_size']}: not supported. Only hidden_size is.")
    distance = "max_relative_positions"
    if hf_config[distance] == -1:
        hf_config = {**hf_config, distance: hf_config["max_position_embeddings"]}
    types = hf_config["type_vocab_size"]
    return found | {
        "num_token_types": fields.size(hf_config, "type_vocab_size") if types else 0,
        "max_distance": fields.size(hf_config, distance),
    }


def config_to_huggingface(config: DebertaConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    return common_keys(CONFIG, config, heads)


def common_keys(entries: ConfigMap, config: DebertaConfig, heads: Iterable[str]) -> dict[str, Any]:
    """Returns the keys of config.json that all versions of DeBERTa have.

    Args:
      entries: The table of the version.
      config: configuration of the model.
      heads: names of the parameters of the heads of pretraining.

    Raises:
      UserError: transformers does not support the model.
    """
    found = entries.to_json(
        config,
        type_vocab_size=config.num_token_types,
        max_relative_positions=config.max_distance,
        pos_att_type="|".join(_SCORES),
        pooler_dropout=0,
        pooler_hidden_act=_POOLER_ACTIVATION,
        pooler_hidden_size=config.embed_dim,
    )
    prefix = entries.classes[()].removesuffix("Model")
    return found | {"architectures": [f"{prefix}{_class_suffix(set(heads))}"]}


def _class_suffix(heads: set[str]) -> str:
    if any(name.startswith(f"{MASKED_LM}/") for name in heads):
        if POSITION_TABLE not in heads:
            return "ForMaskedLM"
        logging.warning(
            "transformers has no enhanced mask decoder: config.json names the bare model, and the tensors of the head "
            "are written beside it"
        )
    return "Model"


def table(config: DebertaConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the masked-LM head."""
    layer, hf_layer = "model/encoder/layers", "deberta.encoder.layer.{i}"
    own = f"{hf_layer}.attention.self"

    def in_projection(name, part):
        options = {"part": (part, 3), "groups": config.num_heads}
        return TensorMapping(f"{layer}/attention/{name}/kernel", f"{own}.in_proj.weight", "linear", **options)

    return [
        *embeddings(config),
        *(in_projection(name, part) for part, name in enumerate(("query", "key", "value"))),
        TensorMapping(f"{layer}/attention/query/bias", f"{own}.q_bias", "flat"),
        TensorMapping(f"{layer}/attention/value/bias", f"{own}.v_bias", "flat"),
        *dense(f"{layer}/attention/position_key", f"{own}.pos_proj", bias=False),
        *dense(f"{layer}/attention/position_query", f"{own}.pos_q_proj"),
        *after_attention(layer, hf_layer),
        *masked_lm_head(),
    ]


def embeddings(config: DebertaConfig) -> list[TensorMapping]:
    """Maps the embeddings, and the table of relative positions."""
    hf_name, types = "deberta.embeddings", "model/embeddings/token_type_embedder/embedding"
    has_types = bool(config.num_token_types)
    return [
        TensorMapping("model/embeddings/token_embedder/embedding", f"{hf_name}.word_embeddings.weight"),
        *([TensorMapping(types, f"{hf_name}.token_type_embeddings.weight")] if has_types else []),
        *norm("model/embeddings/norm", f"{hf_name}.LayerNorm"),
        TensorMapping("model/relative_embedder/embedding", "deberta.encoder.rel_embeddings.weight"),
    ]


def after_attention(layer: str, hf_layer: str) -> list[TensorMapping]:
    """Maps what follows the scores of a layer: the output of the attention, the feed-forward block and their norms."""
    return [
        *dense(f"{layer}/attention/out", f"{hf_layer}.attention.output.dense", input_dims=2),
        *norm(f"{layer}/attention_norm", f"{hf_layer}.attention.output.LayerNorm"),
        *dense(f"{layer}/mlp/wi", f"{hf_layer}.intermediate.dense"),
        *dense(f"{layer}/mlp/wo", f"{hf_layer}.output.dense"),
        *norm(f"{layer}/mlp_norm", f"{hf_layer}.output.LayerNorm"),
    ]


def masked_lm_head() -> list[TensorMapping]:
    """Maps the masked-LM head, and the position table of the enhanced mask decoder."""
    return [
        *dense(f"{MASKED_LM}/dense", "cls.predictions.transform.dense"),
        *norm(f"{MASKED_LM}/norm", "cls.predictions.transform.LayerNorm"),
        TensorMapping(f"{MASKED_LM}/bias", "cls.predictions.bias"),
        TensorMapping(POSITION_TABLE, "deberta.embeddings.position_embeddings.weight"),
    ]


def head_classes(prefix: str) -> Callable[[Mapping[str, Any]], tuple[HeadClass, ...]]:
    """Returns a function that returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`.

    Args:
      prefix: beginning of the names of the classes.
    """
    tagging = head_table(TOKENS, classifier="classifier")
    found = (
        pooled_class(f"{prefix}ForSequenceClassification", SEQUENCE),
        # It always has the dropout rate of the model.
        HeadClass(f"{prefix}ForTokenClassification", TOKENS, tagging, lambda hf_config: heads.EachToken()),
        question_answering(f"{prefix}ForQuestionAnswering", heads.EachToken(dropout_rate=0.0)),
    )
    return lambda hf_config: found


def pooled_class(name: str, head: str, *, has_labels: bool = True) -> HeadClass:
    """Returns a class whose head reads the pooled first token.

    Args:
      name: name of the class.
      head: name of the head.
      has_labels: see `HeadClass`.
    """
    key = "cls_dropout"

    def form(hf_config):
        fields.check_fixed(hf_config, {"pooler_hidden_act": _POOLER_ACTIVATION})
        pooler_rate = dropout_rate(hf_config, 0.0, "pooler_dropout")
        return heads.GeluPooledFirstToken(dropout_rate=dropout_rate(hf_config, None, key), pooler_rate=pooler_rate)

    table = head_table(head, pooler="pooler.dense", classifier="classifier")
    return HeadClass(name, head, table, form, has_labels=has_labels, dropout_key=key)


# Names of the masked-LM head in the released files, and of transformers with `legacy: false` -> names here.
RELEASED_HEAD = (
    (r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.", r"cls.predictions.transform.\1."),
    (r"^lm_predictions\.lm_head\.bias$", "cls.predictions.bias"),
)


def tied(config: DebertaConfig) -> dict[str, str]:
    """Returns the copies that a masked-LM head has; see `tensor_mapping.Family.tied`."""
    head = "cls.predictions"
    return {
        f"{head}.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        f"{head}.decoder.bias": f"{head}.bias",
    }


# Buffers, and the position table of the enhanced mask decoder beside the head of a downstream task.
IGNORED = re.compile(r"deberta\.embeddings\.(position_ids|token_type_ids|position_embeddings\.weight)")

FAMILY = Family(
    model_types=("deberta",),
    config_class=DebertaConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes("Deberta"),
    prefix="deberta.",
    name_substitutions=RELEASED_HEAD,
    ignored=IGNORED,
    tied=tied,
)
