"""Maps ALBERT, with the heads of pretraining and of downstream tasks, to transformers.

The pooler belongs to the head that reads it, and the head of sentence order is `objective/next_sentence`. A group of
layers in transformers has `inner_group_num` layers; here it has one, as in all published models.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.bert import ACTIVATIONS, MASKED_LM, NEXT_SENTENCE, TENSORFLOW_HEADS, special_tokens
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, architecture, dropout_rate, question_answering
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorFlowFormat, TensorMapping, dense, norm
from t5x_like.models.albert import AlbertConfig
from t5x_like.objectives import heads
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.sentence_order import SentenceOrder

_NAMES = {
    # field of the configuration: key of config.json
    "vocab_size": "vocab_size",
    "embedding_dim": "embedding_size",
    "embed_dim": "hidden_size",
    "mlp_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "stored_layers": "num_hidden_groups",
    "max_length": "max_position_embeddings",
    "num_token_types": "type_vocab_size",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
# Defaults of transformers for missing keys.
_DEFAULTS = {
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_attention_heads": 64,
    "num_hidden_layers": 12,
    "num_hidden_groups": 1,
    "hidden_act": "gelu_new",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "pad_token_id": 0,
}
# Keys with one supported value.
_FIXED = {"inner_group_num": 1, "position_embedding_type": "absolute", "tie_word_embeddings": True}
_DROPOUT_KEY = "classifier_dropout_prob"
_SPECIAL_TOKENS = {"bos_token_id": 2, "eos_token_id": 3}

_POOLER = f"{NEXT_SENTENCE}/pooler/"
# Heads -> class of transformers.
_ARCHITECTURES = {
    (): "AlbertModel",
    (MASKED_LM,): "AlbertForMaskedLM",
    (MASKED_LM, NEXT_SENTENCE): "AlbertForPreTraining",
}


def config_from_huggingface(hf_config: Mapping[str, Any]) -> AlbertConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = fields.with_defaults(hf_config, _DEFAULTS)
    fields.check_fixed(hf_config, _FIXED)
    found = fields.values(hf_config, _NAMES, AlbertConfig)
    if found["embedding_dim"] == found["embed_dim"]:
        raise UserError(
            f"embedding_size={found['embedding_dim']}: not supported, because it equals hidden_size. transformers "
            "projects embeddings of any size, AlbertConfig only embeddings of another size than the hidden states."
        )
    return AlbertConfig(
        head_dim=fields.head_dim(hf_config, "hidden_size", "num_attention_heads"),
        padding_id=hf_config["pad_token_id"],
        activations=(fields.choice(hf_config, "hidden_act", ACTIVATIONS),),
        **found,
    )


def config_to_huggingface(config: AlbertConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    activation = fields.activation_name(config.activations, ACTIVATIONS, "ALBERT")
    if config.unembed_dim == config.embed_dim:
        raise UserError(
            f"embedding_dim={config.embedding_dim}: not supported by transformers' ALBERT, which projects the "
            f"embeddings. Only a size other than embed_dim={config.embed_dim} has a projection."
        )
    fields.check_head_dim(config, "ALBERT")
    return {
        "architectures": [architecture(heads, _ARCHITECTURES, "ALBERT", pooler=_POOLER, pooled=NEXT_SENTENCE)],
        "model_type": "albert",
        "hidden_act": activation,
        "torch_dtype": "float32",
        **_FIXED,
        **special_tokens(config, _DEFAULTS["pad_token_id"], _SPECIAL_TOKENS),
        **{key: getattr(config, field) for field, key in _NAMES.items()},
    }


def table(config: AlbertConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the heads."""
    embeddings, layer = "albert.embeddings", "model/encoder/layers"
    hf_layer = "albert.encoder.albert_layer_groups.{i}.albert_layers.0"
    return [
        TensorMapping("model/embeddings/token_embedder/embedding", f"{embeddings}.word_embeddings.weight"),
        TensorMapping("model/embeddings/position_embedder/embedding", f"{embeddings}.position_embeddings.weight"),
        TensorMapping("model/embeddings/token_type_embedder/embedding", f"{embeddings}.token_type_embeddings.weight"),
        *norm("model/embeddings/norm", f"{embeddings}.LayerNorm"),
        *dense("model/embedding_projection", "albert.encoder.embedding_hidden_mapping_in"),
        *dense(f"{layer}/attention/query", f"{hf_layer}.attention.query"),
        *dense(f"{layer}/attention/key", f"{hf_layer}.attention.key"),
        *dense(f"{layer}/attention/value", f"{hf_layer}.attention.value"),
        *dense(f"{layer}/attention/out", f"{hf_layer}.attention.dense", input_dims=2),
        *norm(f"{layer}/attention_norm", f"{hf_layer}.attention.LayerNorm"),
        *dense(f"{layer}/mlp/wi", f"{hf_layer}.ffn"),
        *dense(f"{layer}/mlp/wo", f"{hf_layer}.ffn_output"),
        *norm(f"{layer}/mlp_norm", f"{hf_layer}.full_layer_layer_norm"),
        *dense(f"{MASKED_LM}/dense", "predictions.dense"),
        *norm(f"{MASKED_LM}/norm", "predictions.LayerNorm"),
        TensorMapping(f"{MASKED_LM}/bias", "predictions.bias"),
        *dense(f"{NEXT_SENTENCE}/pooler", "albert.pooler"),
        *dense(f"{NEXT_SENTENCE}/classifier", "sop_classifier.classifier"),
    ]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""

    def form(make):
        return lambda hf_config: make(dropout_rate=dropout_rate(hf_config, 0.1, _DROPOUT_KEY))

    def pooled(head):
        return tuple(dense(f"{OBJECTIVE}{head}/pooler", "albert.pooler")) + tuple(
            dense(f"{OBJECTIVE}{head}/classifier", "classifier")
        )

    key = {"dropout_key": _DROPOUT_KEY}
    return (
        HeadClass("AlbertForSequenceClassification", SEQUENCE, pooled(SEQUENCE), form(heads.PooledFirstToken), **key),
        HeadClass(
            "AlbertForTokenClassification",
            TOKENS,
            tuple(dense(f"{OBJECTIVE}{TOKENS}/classifier", "classifier")),
            form(heads.EachToken),
            **key,
        ),
        HeadClass(
            *("AlbertForMultipleChoice", CHOICES, pooled(CHOICES), form(heads.PooledFirstToken)),
            has_labels=False,
            **key,
        ),
        question_answering("AlbertForQuestionAnswering", heads.EachToken(dropout_rate=0.0)),
    )


_TENSORFLOW_NAMES = (
    (r"^albert\.pooler\.", "bert.pooler.dense."),
    (r"^albert\.", "bert."),
    (r"albert_layer_groups\.\{i\}\.albert_layers\.0", "transformer.group_{i}.inner_group_0"),
    (r"\.attention\.(query|key|value)\.", r".attention_1.self.\1."),
    (r"\.attention\.dense\.", ".attention_1.output.dense."),
    (r"\.attention\.LayerNorm\.", ".LayerNorm."),
    (r"\.full_layer_layer_norm\.", ".LayerNorm_1."),
    (r"\.ffn\.", ".ffn_1.intermediate.dense."),
    (r"\.ffn_output\.", ".ffn_1.intermediate.output.dense."),
    (r"^predictions\.(dense|LayerNorm)\.", r"cls.predictions.transform.\1."),
    (r"^predictions\.", "cls.predictions."),
    (r"^sop_classifier\.classifier\.", "cls.seq_relationship."),
    *TENSORFLOW_HEADS,
)

FAMILY = Family(
    model_types=("albert",),
    config_class=AlbertConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix="albert.",
    # Poolers of classes that do not use them.
    ignored=re.compile(r"albert\.(embeddings\.(position_ids|token_type_ids)|pooler\.(weight|bias))"),
    tied=lambda config: {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    sentencepiece="spiece.model",
    lowers_text=True,
    tensorflow=TensorFlowFormat(
        markers=("bert/encoder/embedding_hidden_mapping_in/kernel",),
        names=_TENSORFLOW_NAMES,
        objective=lambda config, shapes: (Joint, {"objectives": [MaskedLM(), SentenceOrder()]}),
        config_file="albert_config.json",
    ),
)
