"""Maps Longformer to transformers, with the masked-LM head and the heads of downstream tasks.

A class of transformers chooses the global tokens of its task: the first token for labels of texts, the question for
question answering, and the choice for multiple choice.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import bert, fields
from t5x_like.interop.bert import ACTIVATIONS, MASKED_LM, special_tokens
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, architecture, question_answering
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense
from t5x_like.models.longformer import AfterSeparators, BeforeSeparator, FirstToken, GlobalTokens, LongformerConfig
from t5x_like.objectives import heads

_MODEL_TYPE, _PREFIX = "longformer", "longformer."
# Defaults of transformers for missing keys.
_DEFAULTS = {
    "attention_window": 512,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "vocab_size": 30522,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "pad_token_id": 1,
    "sep_token_id": 2,
}
_SPECIAL_TOKENS = {"bos_token_id": 0, "eos_token_id": 2}
_ARCHITECTURES = {(): "LongformerModel", (MASKED_LM,): "LongformerForMaskedLM"}


def config_from_huggingface(hf_config: Mapping[str, Any]) -> LongformerConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = fields.with_defaults(hf_config, _DEFAULTS)
    found = fields.values(hf_config, bert.NAMES, LongformerConfig)
    padding = hf_config["pad_token_id"]
    return LongformerConfig(
        head_dim=fields.head_dim(hf_config, "hidden_size", "num_attention_heads"),
        max_length=fields.size(hf_config, "max_position_embeddings") - padding - 1,
        position_offset=padding + 1,
        padding_id=padding,
        activations=(fields.choice(hf_config, "hidden_act", ACTIVATIONS),),
        window=_window(hf_config),
        global_tokens=_global_tokens(hf_config),
        **found,
    )


def _window(hf_config: Mapping[str, Any]) -> int:
    """Returns the number of tokens that a token sees on each side."""
    given = hf_config["attention_window"]
    windows = given if isinstance(given, (list, tuple)) else [given]
    is_even = all(isinstance(each, int) and each > 0 and each % 2 == 0 for each in windows)
    if not windows or not is_even or len(set(windows)) != 1:
        raise UserError(f"attention_window {given}: not supported. Give all layers the same positive even number.")
    return windows[0] // 2


def _global_tokens(hf_config: Mapping[str, Any]) -> GlobalTokens | None:
    """Returns the global tokens of the class of a directory, which transformers chooses without a mask."""
    separator = hf_config["sep_token_id"]
    classes = {
        "LongformerForSequenceClassification": FirstToken(),
        "LongformerForQuestionAnswering": BeforeSeparator(separator),
        "LongformerForMultipleChoice": AfterSeparators(separator),
    }
    return next((classes[name] for name in fields.strings(hf_config, "architectures") if name in classes), None)


def _check_class(config: LongformerConfig, name: str) -> None:
    """Checks that a class of transformers chooses the global tokens of the model.

    Raises:
      UserError: it chooses others.
    """
    chosen = _global_tokens({"architectures": [name], "sep_token_id": getattr(config.global_tokens, "separator_id", 0)})
    if chosen != config.global_tokens and name != "LongformerModel":
        raise UserError(
            f"GLOBAL_TOKENS={config.global_tokens}: transformers' {name} has the global tokens {chosen}, which it "
            "chooses itself"
        )


def config_to_huggingface(config: LongformerConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    activation = fields.activation_name(config.activations, ACTIVATIONS, "Longformer")
    fields.check_head_dim(config, "Longformer")
    if config.unembed_dim != config.embed_dim:
        raise UserError(f"embedding_dim={config.embedding_dim}: not supported by transformers' Longformer. Omit it.")
    if config.padding_id != config.position_offset - 1:
        raise UserError(
            f"position_offset={config.position_offset} with padding_id={config.padding_id}: not supported by "
            f"transformers' Longformer. Set padding_id={config.position_offset - 1}."
        )
    found = architecture(heads, _ARCHITECTURES, "longformer")
    if found != _ARCHITECTURES[()]:
        bert.check_head(config.activations[0], f"activations {config.activations}")
    tokens = special_tokens(config, _DEFAULTS["pad_token_id"], _SPECIAL_TOKENS)
    separator = getattr(config.global_tokens, "separator_id", None)
    if separator not in (None, tokens.get("sep_token_id", _DEFAULTS["sep_token_id"])):
        tokens["sep_token_id"] = separator
    return {
        "architectures": [found],
        "model_type": _MODEL_TYPE,
        "attention_window": [2 * config.window] * config.num_layers,
        "hidden_act": activation,
        "max_position_embeddings": config.max_length + config.position_offset,
        "torch_dtype": "float32",
        **tokens,
        **{key: getattr(config, field) for field, key in bert.NAMES.items()},
    }


def table(config: LongformerConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the masked-LM head."""
    layer, hf_layer = "model/encoder/layers", f"{_PREFIX}encoder.layer.{{i}}"
    own = ("query_global", "key_global", "value_global")
    attention = [dense(f"{layer}/attention/{name}", f"{hf_layer}.attention.self.{name}") for name in own]
    return [*bert.encoder(_MODEL_TYPE), *itertools.chain(*attention), *bert.roberta_heads()]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    sequence, choices = f"{OBJECTIVE}{SEQUENCE}", f"{OBJECTIVE}{CHOICES}"
    classifier = dense(f"{sequence}/dense", "classifier.dense") + dense(f"{sequence}/classifier", "classifier.out_proj")
    choice = dense(f"{choices}/pooler", f"{_PREFIX}pooler.dense") + dense(f"{choices}/classifier", "classifier")
    tags = dense(f"{OBJECTIVE}{TOKENS}/classifier", "classifier")
    first, pooled, each = heads.DenseFirstToken, heads.PooledFirstToken, heads.EachToken
    # The heads have the dropout rate of the model, except for question answering, which has no dropout.
    return (
        HeadClass("LongformerForSequenceClassification", SEQUENCE, tuple(classifier), lambda hf_config: first()),
        HeadClass("LongformerForTokenClassification", TOKENS, tuple(tags), lambda hf_config: each()),
        HeadClass("LongformerForMultipleChoice", CHOICES, tuple(choice), lambda hf_config: pooled(), has_labels=False),
        question_answering("LongformerForQuestionAnswering", each(dropout_rate=0.0)),
    )


def _tied(config: LongformerConfig) -> dict[str, str]:
    return {
        "lm_head.decoder.weight": f"{_PREFIX}embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }


FAMILY = Family(
    check_class=_check_class,
    model_types=(_MODEL_TYPE,),
    config_class=LongformerConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix=_PREFIX,
    # config.json does not state global tokens, because they depend on the task.
    free_fields=("global_tokens", "max_global_tokens"),
    ignored=re.compile(r"longformer\.(embeddings\.(position_ids|token_type_ids)|pooler\.dense\.(weight|bias))"),
    tied=_tied,
)
