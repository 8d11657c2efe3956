"""Maps MobileBERT, with the heads of pretraining and of classification, to transformers.

transformers has the released model and MobileBERT-TINY, with NoNorm or LayerNorm. It does not run layers whose queries
and keys are computed from the hidden states (`attention_input='hidden'`): table 1 of the paper, and IB-BERT. The pooler
belongs to the head that reads it; `classifier_activation` of config.json says whether there is one.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import bert, fields, nonorm_folding
from t5x_like.interop.bert import MASKED_LM, NEXT_SENTENCE, attention, head_form, pretraining_heads
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, head_table, question_answering
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.models.mobilebert import MobileBertConfig
from t5x_like.objectives import heads

# Key of config.json that says whether heads of the first token have a pooler; by default they have.
_POOLER_KEY = "classifier_activation"
_NORMS = {"no_norm": "no_norm", "layer_norm": "layer_norm"}
# Input of the attention -> keys of config.json.
_ATTENTION_INPUTS = {
    "shared_bottleneck": {"use_bottleneck_attention": False, "key_query_shared_bottleneck": True},
    "bottleneck": {"use_bottleneck_attention": True, "key_query_shared_bottleneck": False},
}
_UNSUPPORTED_INPUT = "not supported by transformers' MobileBERT, whose queries and keys are computed from a bottleneck"
_FIXED = {"trigram_input": True, "use_bottleneck": True, "tie_word_embeddings": True}

_CONFIG = ConfigMap(
    config_class=MobileBertConfig,
    model="MobileBERT",
    model_type="mobilebert",
    keys=bert.keys(
        (),
        vocab_size=30522,
        embed_dim=512,
        embedding_dim=128,
        bottleneck_dim=128,
        mlp_dim=512,
        num_mlps=4,
        num_heads=4,
        num_layers=24,
        max_length=512,
        num_token_types=2,
        dropout_rate=0.0,
    ),
    defaults={
        "hidden_act": "relu",
        "normalization_type": "no_norm",
        "pad_token_id": 0,
        **_ATTENTION_INPUTS["shared_bottleneck"],
    },
    fixed=_FIXED,
    activations={
        "relu": "relu",
        "gelu": "gelu_exact",
        "gelu_new": "gelu",
        "gelu_pytorch_tanh": "gelu",
        "silu": "silu",
        "swish": "silu",
    },
    width="bottleneck_dim",
    classes={
        (): "MobileBertModel",
        (MASKED_LM,): "MobileBertForMaskedLM",
        (NEXT_SENTENCE,): "MobileBertForNextSentencePrediction",
        (MASKED_LM, NEXT_SENTENCE): "MobileBertForPreTraining",
    },
    poolers={"pooler": bert.POOLER},
    first=(
        *("architectures", "model_type", "hidden_act", "normalization_type", _POOLER_KEY, "torch_dtype", *_FIXED),
        *_ATTENTION_INPUTS["bottleneck"],
    ),
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> MobileBertConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = _CONFIG.with_defaults(hf_config)
    if fields.boolean(hf_config, "use_bottleneck_attention"):
        attention_input = "bottleneck"
    elif fields.boolean(hf_config, "key_query_shared_bottleneck"):
        attention_input = "shared_bottleneck"
    else:
        raise UserError(f"use_bottleneck_attention and key_query_shared_bottleneck are false: {_UNSUPPORTED_INPUT}")
    return MobileBertConfig(
        attention_input=attention_input,
        normalization=fields.choice(hf_config, "normalization_type", _NORMS),
        **_CONFIG.read(hf_config),
    )


def config_to_huggingface(config: MobileBertConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    if config.attention_input not in _ATTENTION_INPUTS:
        raise UserError(f"attention_input={config.attention_input!r}: {_UNSUPPORTED_INPUT}")
    heads = set(heads)
    return _CONFIG.to_json(
        config,
        heads,
        normalization_type=config.normalization,
        **{_POOLER_KEY: any(name.startswith(bert.POOLER) for name in heads)},
        **_ATTENTION_INPUTS[config.attention_input],
    )


def table(config: MobileBertConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the heads."""
    embeddings, hf_layer, layer = "mobilebert.embeddings", "mobilebert.encoder.layer.{i}", "model/encoder/layers"
    mlps: list[TensorMapping] = []
    for index in range(config.num_mlps):
        # In transformers, the last feed-forward block and its norm are not in the list `ffn`.
        name, last = f"{layer}/mlp_{index}" if index else f"{layer}/mlp", index == config.num_mlps - 1
        hf_mlp = hf_layer if last else f"{hf_layer}.ffn.{index}"
        mlps += dense(f"{name}/wi", f"{hf_mlp}.intermediate.dense") + dense(f"{name}/wo", f"{hf_mlp}.output.dense")
        mlps += norm(f"{name}_norm", f"{hf_mlp}.output.LayerNorm")
    shared: list[TensorMapping] = []
    if config.attention_input == "shared_bottleneck":
        shared = _normed(f"{layer}/attention_bottleneck", f"{hf_layer}.bottleneck.attention")
    return [
        TensorMapping("model/token_embedder/embedding", f"{embeddings}.word_embeddings.weight"),
        *dense("model/embedding_projection", f"{embeddings}.embedding_transformation"),
        TensorMapping("model/position_embedder/embedding", f"{embeddings}.position_embeddings.weight"),
        TensorMapping("model/token_type_embedder/embedding", f"{embeddings}.token_type_embeddings.weight"),
        *norm("model/embedding_norm", f"{embeddings}.LayerNorm"),
        *_normed(f"{layer}/bottleneck", f"{hf_layer}.bottleneck.input"),
        *shared,
        *attention(layer, hf_layer),
        *mlps,
        *_normed(f"{layer}/expansion", f"{hf_layer}.output.bottleneck"),
        *pretraining_heads("mobilebert"),
        *([TensorMapping(f"{MASKED_LM}/untied", "cls.predictions.dense.weight")] if config.untied_dim else []),
    ]


def _normed(name: str, hf_name: str) -> list[TensorMapping]:
    """Maps a projection and its norm."""
    return dense(name, f"{hf_name}.dense") + norm(f"{name}_norm", f"{hf_name}.LayerNorm")


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    tagging = head_table(TOKENS, classifier="classifier")
    classes = [
        HeadClass("MobileBertForTokenClassification", TOKENS, tagging, head_form(heads.EachToken)),
        question_answering("MobileBertForQuestionAnswering", heads.EachToken(dropout_rate=0.0)),
    ]
    pooler = {"pooler": "mobilebert.pooler.dense"}
    for name, head in (("MobileBertForSequenceClassification", SEQUENCE), ("MobileBertForMultipleChoice", CHOICES)):
        for pooled, form in ((pooler, heads.PooledFirstToken), ({}, heads.FirstToken)):
            table = head_table(head, **pooled, classifier="classifier")
            options = {"has_labels": head == SEQUENCE, "settings": {_POOLER_KEY: bool(pooled)}}
            classes.append(HeadClass(name, head, table, head_form(form), **options))
    return tuple(classes)


FAMILY = Family(
    model_types=("mobilebert",),
    config_class=MobileBertConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix="mobilebert.",
    # Poolers of classes that do not use them, and the shared bottleneck of layers that do not use it.
    ignored=re.compile(
        r"mobilebert\.(embeddings\.position_ids|pooler\.dense\.(weight|bias)"
        r"|encoder\.layer\.\d+\.bottleneck\.attention\.(dense|LayerNorm)\.(weight|bias))"
    ),
    tied=lambda config: {
        "cls.predictions.decoder.weight": "mobilebert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    fold_norms=nonorm_folding.fold,
)
