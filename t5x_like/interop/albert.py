"""Maps ALBERT, with the heads of pretraining and of downstream tasks, to transformers.

The pooler belongs to the head that reads it, and the head of sentence order is `objective/next_sentence`. A group of
layers in transformers has `inner_group_num` layers; here it has one, as in all published models.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import bert
from t5x_like.interop.bert import ACTIVATIONS, MASKED_LM, NEXT_SENTENCE, TENSORFLOW_HEADS
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, dropout_rate, head_table, question_answering
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorFlowFormat, TensorMapping, dense, norm
from t5x_like.models.albert import AlbertConfig
from t5x_like.objectives import heads
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.sentence_order import SentenceOrder

_DROPOUT_KEY = "classifier_dropout_prob"

_CONFIG = ConfigMap(
    config_class=AlbertConfig,
    model="ALBERT",
    model_type="albert",
    keys=bert.keys(
        (),
        vocab_size=30000,
        embedding_dim=128,
        embed_dim=4096,
        mlp_dim=16384,
        num_heads=64,
        num_layers=12,
        stored_layers=1,
        max_length=512,
        num_token_types=2,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    ),
    defaults={"hidden_act": "gelu_new", "pad_token_id": 0},
    fixed={"inner_group_num": 1, "position_embedding_type": "absolute", "tie_word_embeddings": True},
    required={"position_offset": 0},
    activations=ACTIVATIONS,
    classes={
        (): "AlbertModel",
        (MASKED_LM,): "AlbertForMaskedLM",
        (MASKED_LM, NEXT_SENTENCE): "AlbertForPreTraining",
    },
    poolers={"pooler": bert.POOLER, "pooled": NEXT_SENTENCE},
    tokens={"bos_token_id": 2, "eos_token_id": 3},
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> AlbertConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    found = _CONFIG.read(_CONFIG.with_defaults(hf_config))
    if found["embedding_dim"] == found["embed_dim"]:
        raise UserError(
            f"embedding_size={found['embedding_dim']}: not supported, because it equals hidden_size. transformers "
            "projects embeddings of any size, AlbertConfig only embeddings of another size than the hidden states."
        )
    return AlbertConfig(**found)


def config_to_huggingface(config: AlbertConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    if config.unembed_dim == config.embed_dim:
        raise UserError(
            f"embedding_dim={config.embedding_dim}: not supported by transformers' ALBERT, which projects the "
            f"embeddings. Only a size other than embed_dim={config.embed_dim} has a projection."
        )
    return _CONFIG.to_json(config, heads)


def table(config: AlbertConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the heads."""
    layer, hf_layer = "model/encoder/layers", "albert.encoder.albert_layer_groups.{i}.albert_layers.0"
    return [
        *bert.embeddings("albert"),
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
        return head_table(head, pooler="albert.pooler", classifier="classifier")

    first, tagging, key = form(heads.PooledFirstToken), head_table(TOKENS, classifier="classifier"), _DROPOUT_KEY
    return (
        HeadClass("AlbertForSequenceClassification", SEQUENCE, pooled(SEQUENCE), first, dropout_key=key),
        HeadClass("AlbertForTokenClassification", TOKENS, tagging, form(heads.EachToken), dropout_key=key),
        HeadClass("AlbertForMultipleChoice", CHOICES, pooled(CHOICES), first, has_labels=False, dropout_key=key),
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
