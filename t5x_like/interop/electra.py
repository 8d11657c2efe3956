"""Maps ELECTRA to transformers: the discriminator, the generator, and the heads of downstream tasks.

The heads of pretraining are `objective/replaced_tokens`, of `ElectraForPreTraining`, and `objective/masked_lm`, of
`ElectraForMaskedLM`, whose logits have the table of the token embeddings as their kernel.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.bert import ACTIVATIONS, MASKED_LM, attention, head_form, special_tokens
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, architecture, dropout_rate, question_answering
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorFlowFormat, TensorMapping, dense, norm
from t5x_like.models.electra import ElectraConfig
from t5x_like.objectives import discriminators, heads, replaced_tokens

_NAMES = {
    # field of the configuration: key of config.json
    "vocab_size": "vocab_size",
    "embedding_dim": "embedding_size",
    "embed_dim": "hidden_size",
    "mlp_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "max_length": "max_position_embeddings",
    "num_token_types": "type_vocab_size",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
# Defaults of transformers for missing keys.
_DEFAULTS = {
    "vocab_size": 30522,
    "embedding_size": 128,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_hidden_layers": 12,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "pad_token_id": 0,
}
# Keys with one supported value.
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_REPLACED_TOKENS = f"{OBJECTIVE}{discriminators.NAME}"
# Head of pretraining -> class of transformers.
_ARCHITECTURES = {
    (): "ElectraModel",
    (MASKED_LM,): "ElectraForMaskedLM",
    (_REPLACED_TOKENS,): "ElectraForPreTraining",
}
# What the head of multiple choice reads; other values of these keys are other heads.
_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}
_SUMMARY_DROPOUT = "summary_last_dropout"
# The activation of the generator's head in transformers, whatever hidden_act is.
_HEAD_ACTIVATION = "gelu_exact"


def config_from_huggingface(hf_config: Mapping[str, Any]) -> ElectraConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = fields.with_defaults(hf_config, _DEFAULTS)
    fields.check_fixed(hf_config, _FIXED)
    found = fields.values(hf_config, _NAMES, ElectraConfig)
    activation = fields.choice(hf_config, "hidden_act", ACTIVATIONS)
    if "ElectraForMaskedLM" in fields.strings(hf_config, "architectures"):
        _check_head(activation, f"hidden_act {hf_config['hidden_act']!r}")
    return ElectraConfig(
        head_dim=fields.head_dim(hf_config, "hidden_size", "num_attention_heads"),
        padding_id=hf_config["pad_token_id"],
        activations=(activation,),
        **found,
    )


def config_to_huggingface(config: ElectraConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    activation = fields.activation_name(config.activations, ACTIVATIONS, "ELECTRA")
    fields.check_head_dim(config, "ELECTRA")
    if config.position_offset:
        raise UserError(f"position_offset={config.position_offset}: not supported by transformers' ELECTRA. Set 0.")
    if not config.num_token_types:
        raise UserError("num_token_types=0: not supported by transformers' ELECTRA. Set 1.")
    found = architecture(heads, _ARCHITECTURES, "ELECTRA")
    if found == "ElectraForMaskedLM":
        _check_head(config.activations[0], f"activations {config.activations}")
    return {
        "architectures": [found],
        "model_type": "electra",
        "hidden_act": activation,
        "torch_dtype": "float32",
        **_FIXED,
        **special_tokens(config, _DEFAULTS["pad_token_id"], {}),
        **{key: getattr(config, field) for field, key in _NAMES.items()},
        "embedding_size": config.unembed_dim,
    }


def _check_head(activation: str, source: str) -> None:
    if activation != _HEAD_ACTIVATION:
        raise UserError(
            f"{source}: not supported with a masked-LM head, since transformers' ELECTRA head always uses exact GELU. "
            "The head here uses the activation of the model."
        )


def table(config: ElectraConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the heads."""
    embeddings, hf_layer, layer = "electra.embeddings", "electra.encoder.layer.{i}", "model/encoder/layers"
    has_projection = config.unembed_dim != config.embed_dim
    return [
        TensorMapping("model/embeddings/token_embedder/embedding", f"{embeddings}.word_embeddings.weight"),
        TensorMapping("model/embeddings/position_embedder/embedding", f"{embeddings}.position_embeddings.weight"),
        TensorMapping("model/embeddings/token_type_embedder/embedding", f"{embeddings}.token_type_embeddings.weight"),
        *norm("model/embeddings/norm", f"{embeddings}.LayerNorm"),
        *(dense("model/embedding_projection", "electra.embeddings_project") if has_projection else ()),
        *attention(layer, hf_layer),
        *dense(f"{layer}/mlp/wi", f"{hf_layer}.intermediate.dense"),
        *dense(f"{layer}/mlp/wo", f"{hf_layer}.output.dense"),
        *norm(f"{layer}/mlp_norm", f"{hf_layer}.output.LayerNorm"),
        *dense(f"{MASKED_LM}/dense", "generator_predictions.dense"),
        *norm(f"{MASKED_LM}/norm", "generator_predictions.LayerNorm"),
        TensorMapping(f"{MASKED_LM}/bias", "generator_lm_head.bias"),
        *dense(f"{_REPLACED_TOKENS}/dense", "discriminator_predictions.dense"),
        *dense(f"{_REPLACED_TOKENS}/classifier", "discriminator_predictions.dense_prediction"),
    ]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    sequence = f"{OBJECTIVE}{SEQUENCE}"
    pooled = dense(f"{sequence}/dense", "classifier.dense") + dense(f"{sequence}/classifier", "classifier.out_proj")
    tagging = dense(f"{OBJECTIVE}{TOKENS}/classifier", "classifier")
    choices = dense(f"{OBJECTIVE}{CHOICES}/pooler", "sequence_summary.summary")
    choices += dense(f"{OBJECTIVE}{CHOICES}/classifier", "classifier")
    return (
        HeadClass("ElectraForSequenceClassification", SEQUENCE, tuple(pooled), head_form(heads.GeluFirstToken)),
        HeadClass("ElectraForTokenClassification", TOKENS, tuple(tagging), head_form(heads.EachToken)),
        question_answering("ElectraForQuestionAnswering", heads.EachToken(dropout_rate=0.0)),
        HeadClass(
            *("ElectraForMultipleChoice", CHOICES, tuple(choices), _summary),
            has_labels=False,
            dropout_key=_SUMMARY_DROPOUT,
            settings=_SUMMARY,
        ),
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
