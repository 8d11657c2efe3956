"""Maps DistilBERT, with its heads of pretraining and of classification, to transformers."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like import limits
from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.bert import ACTIVATIONS, MASKED_LM, special_tokens
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, SPANS, TOKENS, architecture
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.models.distilbert import DistilBertConfig
from t5x_like.objectives import heads

_NAMES = {
    # field of the configuration: key of config.json
    "vocab_size": "vocab_size",
    "embed_dim": "dim",
    "mlp_dim": "hidden_dim",
    "num_heads": "n_heads",
    "num_layers": "n_layers",
    "max_length": "max_position_embeddings",
    "dropout_rate": "dropout",
    "attention_dropout_rate": "attention_dropout",
    "initializer_range": "initializer_range",
    "sinusoidal_positions": "sinusoidal_pos_embds",
}
# Dropout rates of heads.
_CLASSIFIER_DROPOUT, _SPANS_DROPOUT = "seq_classif_dropout", "qa_dropout"
# Defaults of transformers for missing keys.
_DEFAULTS = {
    "vocab_size": 30522,
    "dim": 768,
    "hidden_dim": 3072,
    "n_heads": 12,
    "n_layers": 6,
    "max_position_embeddings": 512,
    "sinusoidal_pos_embds": False,
    "activation": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    _SPANS_DROPOUT: 0.1,
    _CLASSIFIER_DROPOUT: 0.2,
    "initializer_range": 0.02,
    "pad_token_id": 0,
}
# Keys with one supported value. transformers has no key for the epsilon, which is this one.
_FIXED = {"tie_word_embeddings": True}
_NORM_EPSILON = 1e-12
_ARCHITECTURES = {(): "DistilBertModel", (MASKED_LM,): "DistilBertForMaskedLM"}
_MODEL_TYPE, _PREFIX = "distilbert", "distilbert."


def config_from_huggingface(hf_config: Mapping[str, Any]) -> DistilBertConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = fields.with_defaults(hf_config, _DEFAULTS)
    found = fields.values(hf_config, _NAMES, DistilBertConfig)
    fields.check_fixed(hf_config, _FIXED)
    if found.get("sinusoidal_positions") and found["max_length"] * hf_config["dim"] > limits.TABLE:
        raise UserError(
            f"max_position_embeddings {found['max_length']:,} of {hf_config['dim']:,} features: more than "
            f"{limits.TABLE:,} sinusoids. Give the file that was published with the weights."
        )
    return DistilBertConfig(
        head_dim=fields.head_dim(hf_config, "dim", "n_heads"),
        padding_id=hf_config["pad_token_id"],
        activations=(fields.choice(hf_config, "activation", ACTIVATIONS),),
        norm_epsilon=_NORM_EPSILON,
        **found,
    )


def config_to_huggingface(config: DistilBertConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    activation = fields.activation_name(config.activations, ACTIVATIONS, "DistilBERT")
    if config.norm_epsilon != _NORM_EPSILON:
        raise UserError(
            f"norm_epsilon={config.norm_epsilon}: not supported by transformers' DistilBERT. Set {_NORM_EPSILON}."
        )
    fields.check_head_dim(config, "DistilBERT")
    found = architecture(heads, _ARCHITECTURES, "distilbert")
    return {
        "architectures": [found],
        "model_type": _MODEL_TYPE,
        "activation": activation,
        "torch_dtype": "float32",
        **_FIXED,
        **special_tokens(config, _DEFAULTS["pad_token_id"], {}),
        **{key: getattr(config, field) for field, key in _NAMES.items()},
    }


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
        return tuple(
            dense(f"{OBJECTIVE}{head}/dense", "pre_classifier") + dense(f"{OBJECTIVE}{head}/classifier", "classifier")
        )

    def rate(hf_config, key):
        return fields.number(fields.with_defaults(hf_config, _DEFAULTS), key)

    def relu(hf_config):
        return heads.ReluFirstToken(dropout_rate=rate(hf_config, _CLASSIFIER_DROPOUT))

    tagging = dense(f"{OBJECTIVE}{TOKENS}/classifier", "classifier")
    spans = dense(f"{OBJECTIVE}{SPANS}/classifier", "qa_outputs")
    return (
        HeadClass(
            *("DistilBertForSequenceClassification", SEQUENCE, classifier(SEQUENCE), relu),
            dropout_key=_CLASSIFIER_DROPOUT,
        ),
        HeadClass(
            *("DistilBertForMultipleChoice", CHOICES, classifier(CHOICES), relu),
            has_labels=False,
            dropout_key=_CLASSIFIER_DROPOUT,
        ),
        # It always has the dropout rate of the model.
        HeadClass("DistilBertForTokenClassification", TOKENS, tuple(tagging), lambda hf_config: heads.EachToken()),
        HeadClass(
            *("DistilBertForQuestionAnswering", SPANS, tuple(spans)),
            lambda hf_config: heads.EachToken(dropout_rate=rate(hf_config, _SPANS_DROPOUT)),
            has_labels=False,
            dropout_key=_SPANS_DROPOUT,
        ),
    )


def _tied(config: DistilBertConfig) -> dict[str, str]:
    return {"vocab_projector.weight": f"{_PREFIX}embeddings.word_embeddings.weight"}


FAMILY = Family(
    model_types=(_MODEL_TYPE,),
    config_class=DistilBertConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix=_PREFIX,
    # The initial values of the position table.
    free_fields=("sinusoidal_positions",),
    ignored=re.compile(r"distilbert\.embeddings\.position_ids"),
    tied=_tied,
)
