"""Maps DistilBERT, with its heads of pretraining and of classification, to transformers."""

import re
from collections.abc import Mapping
from typing import Any

from t5x_like import limits
from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.bert import ACTIVATIONS, MASKED_LM
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, SPANS, TOKENS, head_table
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.models.distilbert import DistilBertConfig
from t5x_like.objectives import heads

# Dropout rates of heads.
_CLASSIFIER_DROPOUT, _SPANS_DROPOUT = "seq_classif_dropout", "qa_dropout"
_PREFIX = "distilbert."

_CONFIG = ConfigMap(
    config_class=DistilBertConfig,
    model="DistilBERT",
    model_type="distilbert",
    keys={
        "vocab_size": ("vocab_size", 30522),
        "embed_dim": ("dim", 768),
        "mlp_dim": ("hidden_dim", 3072),
        "num_heads": ("n_heads", 12),
        "num_layers": ("n_layers", 6),
        "max_length": ("max_position_embeddings", 512),
        "dropout_rate": ("dropout", 0.1),
        "attention_dropout_rate": ("attention_dropout", 0.1),
        "initializer_range": ("initializer_range", 0.02),
        "sinusoidal_positions": ("sinusoidal_pos_embds", False),
    },
    defaults={"activation": "gelu", _SPANS_DROPOUT: 0.1, _CLASSIFIER_DROPOUT: 0.2, "pad_token_id": 0},
    fixed={"tie_word_embeddings": True},
    required={"norm_epsilon": 1e-12},
    activations=ACTIVATIONS,
    activation_key="activation",
    classes={(): "DistilBertModel", (MASKED_LM,): "DistilBertForMaskedLM"},
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> DistilBertConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    found = _CONFIG.read(_CONFIG.with_defaults(hf_config))
    if found["sinusoidal_positions"] and found["max_length"] * found["embed_dim"] > limits.TABLE:
        raise UserError(
            f"max_position_embeddings {found['max_length']:,} of {found['embed_dim']:,} features: more than "
            f"{limits.TABLE:,} sinusoids. Give the file that was published with the weights."
        )
    return DistilBertConfig(**found)


def table(config: DistilBertConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the masked-LM head."""
    embeddings, hf_embeddings = "model/embeddings", f"{_PREFIX}embeddings"
    hf_layer, layer = f"{_PREFIX}transformer.layer.{{i}}", "model/encoder/layers"
    return [
        TensorMapping(f"{embeddings}/token_embedder/embedding", f"{hf_embeddings}.word_embeddings.weight"),
        TensorMapping(f"{embeddings}/position_embedder/embedding", f"{hf_embeddings}.position_embeddings.weight"),
        *norm(f"{embeddings}/norm", f"{hf_embeddings}.LayerNorm"),
        *dense(f"{layer}/attention/query", f"{hf_layer}.attention.q_lin"),
        *dense(f"{layer}/attention/key", f"{hf_layer}.attention.k_lin"),
        *dense(f"{layer}/attention/value", f"{hf_layer}.attention.v_lin"),
        *dense(f"{layer}/attention/out", f"{hf_layer}.attention.out_lin", input_dims=2),
        *norm(f"{layer}/attention_norm", f"{hf_layer}.sa_layer_norm"),
        *dense(f"{layer}/mlp/wi", f"{hf_layer}.ffn.lin1"),
        *dense(f"{layer}/mlp/wo", f"{hf_layer}.ffn.lin2"),
        *norm(f"{layer}/mlp_norm", f"{hf_layer}.output_layer_norm"),
        *dense(f"{MASKED_LM}/dense", "vocab_transform"),
        *norm(f"{MASKED_LM}/norm", "vocab_layer_norm"),
        TensorMapping(f"{MASKED_LM}/bias", "vocab_projector.bias"),
    ]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""

    def classifier(head):
        return head_table(head, dense="pre_classifier", classifier="classifier")

    def rate(hf_config, key):
        return fields.number(_CONFIG.with_defaults(hf_config), key)

    def relu(hf_config):
        return heads.ReluFirstToken(dropout_rate=rate(hf_config, _CLASSIFIER_DROPOUT))

    def spans(hf_config):
        return heads.EachToken(dropout_rate=rate(hf_config, _SPANS_DROPOUT))

    tagging, key = head_table(TOKENS, classifier="classifier"), {"dropout_key": _CLASSIFIER_DROPOUT}
    answers, spans_key = head_table(SPANS, classifier="qa_outputs"), {"dropout_key": _SPANS_DROPOUT}
    return (
        HeadClass("DistilBertForSequenceClassification", SEQUENCE, classifier(SEQUENCE), relu, **key),
        HeadClass("DistilBertForMultipleChoice", CHOICES, classifier(CHOICES), relu, has_labels=False, **key),
        # It always has the dropout rate of the model.
        HeadClass("DistilBertForTokenClassification", TOKENS, tagging, lambda hf_config: heads.EachToken()),
        HeadClass("DistilBertForQuestionAnswering", SPANS, answers, spans, has_labels=False, **spans_key),
    )


def _tied(config: DistilBertConfig) -> dict[str, str]:
    return {"vocab_projector.weight": f"{_PREFIX}embeddings.word_embeddings.weight"}


FAMILY = Family(
    model_types=("distilbert",),
    config_class=DistilBertConfig,
    config_from_json=config_from_huggingface,
    config_to_json=_CONFIG.to_json,
    table=table,
    head_classes=head_classes,
    prefix=_PREFIX,
    # The initial values of the position table.
    free_fields=("sinusoidal_positions",),
    ignored=re.compile(r"distilbert\.embeddings\.position_ids"),
    tied=_tied,
)
