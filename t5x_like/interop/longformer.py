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
from t5x_like.interop.bert import ACTIVATIONS, MASKED_LM
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, head_table, question_answering
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense
from t5x_like.models.longformer import AfterSeparators, BeforeSeparator, FirstToken, GlobalTokens, LongformerConfig
from t5x_like.objectives import heads

_PREFIX = "longformer."
_CONFIG = ConfigMap(
    config_class=LongformerConfig,
    model="Longformer",
    model_type="longformer",
    keys=bert.keys(num_token_types=2) | {"vocab_size": ("vocab_size", 30522)},
    defaults={
        "attention_window": 512,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "pad_token_id": 1,
        "sep_token_id": 2,
    },
    activations=ACTIVATIONS,
    classes={(): "LongformerModel", (MASKED_LM,): "LongformerForMaskedLM"},
    tokens={"bos_token_id": 0, "eos_token_id": 2},
    first=("architectures", "model_type", "attention_window", "hidden_act", "max_position_embeddings"),
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> LongformerConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = _CONFIG.with_defaults(hf_config)
    found = _CONFIG.read(hf_config)
    found |= bert.positions(hf_config, found["padding_id"] + 1)
    return LongformerConfig(window=_window(hf_config), global_tokens=_global_tokens(hf_config), **found)


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
    bert.check_positions(config, "Longformer")
    separator = getattr(config.global_tokens, "separator_id", None)
    stored = _CONFIG.special_tokens(config).get("sep_token_id", _CONFIG.defaults["sep_token_id"])
    found = _CONFIG.to_json(
        config,
        heads,
        attention_window=[2 * config.window] * config.num_layers,
        max_position_embeddings=config.max_length + config.position_offset,
        **({} if separator in (None, stored) else {"sep_token_id": separator}),
    )
    if found["architectures"] != ["LongformerModel"]:
        bert.check_head(config.activations, f"activations {config.activations}", "RoBERTa")
    return found


def table(config: LongformerConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the masked-LM head."""
    layer, hf_layer = "model/encoder/layers", f"{_PREFIX}encoder.layer.{{i}}"
    own = ("query_global", "key_global", "value_global")
    attention = [dense(f"{layer}/attention/{name}", f"{hf_layer}.attention.self.{name}") for name in own]
    return [*bert.encoder("longformer"), *itertools.chain(*attention), *bert.roberta_heads()]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    classifier = head_table(SEQUENCE, dense="classifier.dense", classifier="classifier.out_proj")
    choice = head_table(CHOICES, pooler=f"{_PREFIX}pooler.dense", classifier="classifier")
    tags = head_table(TOKENS, classifier="classifier")
    first, pooled, each = heads.DenseFirstToken, heads.PooledFirstToken, heads.EachToken
    # The heads have the dropout rate of the model, except for question answering, which has no dropout.
    return (
        HeadClass("LongformerForSequenceClassification", SEQUENCE, classifier, lambda hf_config: first()),
        HeadClass("LongformerForTokenClassification", TOKENS, tags, lambda hf_config: each()),
        HeadClass("LongformerForMultipleChoice", CHOICES, choice, lambda hf_config: pooled(), has_labels=False),
        question_answering("LongformerForQuestionAnswering", each(dropout_rate=0.0)),
    )


def _tied(config: LongformerConfig) -> dict[str, str]:
    return {
        "lm_head.decoder.weight": f"{_PREFIX}embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    }


FAMILY = Family(
    check_class=_check_class,
    model_types=("longformer",),
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
