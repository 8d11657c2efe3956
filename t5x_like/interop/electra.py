"""Maps ELECTRA to transformers: the discriminator, the generator, and the heads of downstream tasks.

The heads of pretraining are `objective/replaced_tokens`, of `ElectraForPreTraining`, and `objective/masked_lm`, of
`ElectraForMaskedLM`, whose logits have the table of the token embeddings as their kernel.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.interop import bert, fields
from t5x_like.interop.bert import ACTIVATIONS, MASKED_LM, head_form
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, dropout_rate, head_table, question_answering
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorFlowFormat, TensorMapping, dense, norm
from t5x_like.models.electra import ElectraConfig
from t5x_like.objectives import discriminators, heads, replaced_tokens

_REPLACED_TOKENS = f"{OBJECTIVE}{discriminators.NAME}"
_CONFIG = ConfigMap(
    config_class=ElectraConfig,
    model="ELECTRA",
    model_type="electra",
    keys=bert.keys(
        (),
        vocab_size=30522,
        embedding_dim=128,
        embed_dim=256,
        mlp_dim=1024,
        num_heads=4,
        num_layers=12,
        max_length=512,
        num_token_types=2,
    ),
    defaults={"hidden_act": "gelu", "pad_token_id": 0},
    fixed=bert.FIXED,
    required={"position_offset": 0},
    activations=ACTIVATIONS,
    classes={
        (): "ElectraModel",
        (MASKED_LM,): "ElectraForMaskedLM",
        (_REPLACED_TOKENS,): "ElectraForPreTraining",
    },
)
# What the head of multiple choice reads; other values of these keys are other heads.
_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
_SUMMARY_DROPOUT = "summary_last_dropout"


def config_from_huggingface(hf_config: Mapping[str, Any]) -> ElectraConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = _CONFIG.with_defaults(hf_config)
    found = _CONFIG.read(hf_config)
    if "ElectraForMaskedLM" in fields.strings(hf_config, "architectures"):
        bert.check_head(found["activations"], f"hidden_act {hf_config['hidden_act']!r}", "ELECTRA")
    return ElectraConfig(**found)


def config_to_huggingface(config: ElectraConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    found = _CONFIG.to_json(config, heads)
    if found["architectures"] == ["ElectraForMaskedLM"]:
        bert.check_head(config.activations, f"activations {config.activations}", "ELECTRA")
    return found | {"embedding_size": config.unembed_dim}


def table(config: ElectraConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the heads."""
    projection = dense("model/embedding_projection", "electra.embeddings_project")
    return [
        *bert.encoder("electra"),
        *(projection if config.unembed_dim != config.embed_dim else ()),
        *dense(f"{MASKED_LM}/dense", "generator_predictions.dense"),
        *norm(f"{MASKED_LM}/norm", "generator_predictions.LayerNorm"),
        TensorMapping(f"{MASKED_LM}/bias", "generator_lm_head.bias"),
        *dense(f"{_REPLACED_TOKENS}/dense", "discriminator_predictions.dense"),
        *dense(f"{_REPLACED_TOKENS}/classifier", "discriminator_predictions.dense_prediction"),
    ]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    pooled = head_table(SEQUENCE, dense="classifier.dense", classifier="classifier.out_proj")
    tagging = head_table(TOKENS, classifier="classifier")
    choices = head_table(CHOICES, pooler="sequence_summary.summary", classifier="classifier")
    settings = {"dropout_key": _SUMMARY_DROPOUT, "settings": _SUMMARY}
    return (
        HeadClass("ElectraForSequenceClassification", SEQUENCE, pooled, head_form(heads.GeluFirstToken)),
        HeadClass("ElectraForTokenClassification", TOKENS, tagging, head_form(heads.EachToken)),
        question_answering("ElectraForQuestionAnswering", heads.EachToken(dropout_rate=0.0)),
        HeadClass("ElectraForMultipleChoice", CHOICES, choices, _summary, has_labels=False, **settings),
    )


def _summary(hf_config: Mapping[str, Any]) -> heads.HeadForm:
    """Returns the form of the head of multiple choice, whose dropout rate has a key of its own."""
    return heads.GeluPooledFirstToken(dropout_rate=dropout_rate(hf_config, 0.1, _SUMMARY_DROPOUT))


def _pretraining(config: ElectraConfig, shapes: Mapping[str, tuple[int, ...]]) -> tuple[type, dict[str, Any]]:
    """Returns the objective of a TensorFlow checkpoint, whose generator has the sizes of its variables, if any."""
    layer = re.compile(r"generator/encoder/layer_(\d+)/attention/self/query/kernel")
    found = {int(match[1]): shape for name, shape in shapes.items() if (match := layer.fullmatch(name))}
    width, depth = (found[max(found)][0], max(found) + 1) if found else (config.embed_dim, config.num_layers)
    settings = {"generator_size": width / config.embed_dim, "generator_layers": depth / config.num_layers}
    return replaced_tokens.ReplacedTokenDetection, settings


FAMILY = Family(
    model_types=("electra",),
    config_class=ElectraConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix="electra.",
    ignored=re.compile(r"electra\.embeddings\.(position_ids|token_type_ids)"),
    tied=lambda config: {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    tensorflow=TensorFlowFormat(
        markers=("electra/encoder/layer_0/attention/self/query/kernel",),
        names=(
            (r"^generator_lm_head\.bias$", "generator_predictions.output_bias"),
            (r"^discriminator_predictions\.dense_prediction\.", "discriminator_predictions.dense_1."),
        ),
        objective=_pretraining,
        has_networks=True,
    ),
)
