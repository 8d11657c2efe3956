"""Maps BigBird ITC to transformers, with the heads of pretraining and of downstream tasks.

In evaluation mode, transformers lists the first block in place of each random block; here, and in transformers'
training mode, random blocks are those of pretraining. See docs/families/bigbird.md.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.bert import (
    ACTIVATIONS,
    MASKED_LM,
    NEXT_SENTENCE,
    TENSORFLOW_HEADS,
    attention,
    head_form,
    special_tokens,
)
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, SPANS, TOKENS, architecture
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorFlowFormat, TensorMapping, dense, norm
from t5x_like.models.bigbird import BigBirdConfig
from t5x_like.objectives import heads
from t5x_like.objectives.heads.bigbird_heads import ActivatedFirstToken, FeedForwardEachToken
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

_NAMES = {
    # field of the configuration: key of config.json
    "vocab_size": "vocab_size",
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
    "block_size": "block_size",
    "qkv_bias": "use_bias",
    "scale_embeddings": "rescale_embeddings",
}
_RANDOM, _ATTENTION = "num_random_blocks", "attention_type"
# Defaults of transformers for missing keys.
_DEFAULTS = {
    "vocab_size": 50358,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "hidden_act": "gelu_new",
    "max_position_embeddings": 4096,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "pad_token_id": 0,
    _ATTENTION: "block_sparse",
    "block_size": 64,
    _RANDOM: 3,
    "use_bias": True,
    "rescale_embeddings": False,
}
# Keys with one supported value.
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_SPECIAL_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 66}
# Type of attention in transformers -> whether rows have blocks.
_SPARSE = {"block_sparse": True, "original_full": False}
_POOLER = f"{NEXT_SENTENCE}/pooler/"
# Heads -> class of transformers.
_ARCHITECTURES = {
    (): "BigBirdModel",
    (MASKED_LM,): "BigBirdForMaskedLM",
    (MASKED_LM, NEXT_SENTENCE): "BigBirdForPreTraining",
}


def config_from_huggingface(hf_config: Mapping[str, Any]) -> BigBirdConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = fields.with_defaults(hf_config, _DEFAULTS)
    fields.check_fixed(hf_config, _FIXED)
    found = fields.values(hf_config, _NAMES, BigBirdConfig)
    if not fields.choice(hf_config, _ATTENTION, _SPARSE):
        found["block_size"] = None
    return BigBirdConfig(
        head_dim=fields.head_dim(hf_config, "hidden_size", "num_attention_heads"),
        padding_id=hf_config["pad_token_id"],
        activations=(fields.choice(hf_config, "hidden_act", ACTIVATIONS),),
        num_random_blocks=hf_config[_RANDOM],
        **found,
    )


def config_to_huggingface(config: BigBirdConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    activation = fields.activation_name(config.activations, ACTIVATIONS, "BigBird")
    fields.check_head_dim(config, "BigBird")
    if config.unembed_dim != config.embed_dim:
        raise UserError(
            f"embedding_dim={config.embedding_dim}: not supported by transformers' BigBird, whose embeddings have the "
            f"size of the hidden states, {config.embed_dim}. Omit it."
        )
    if config.position_offset:
        raise UserError(f"position_offset={config.position_offset}: not supported by transformers' BigBird. Set 0.")
    if not config.count_repeated_blocks:
        raise UserError(
            "count_repeated_blocks=False: not supported by transformers' BigBird, in which a block listed twice "
            "counts twice. Set True."
        )
    if config.plan is not None:
        raise UserError(
            "plan: the random blocks of a pruned model are not supported by transformers' BigBird, which draws them "
            "from the number of a layer. Train the model with plan=None first."
        )
    if not config.num_token_types:
        raise UserError("num_token_types=0: not supported by transformers' BigBird. Set 1.")
    return {
        "architectures": [architecture(heads, _ARCHITECTURES, "BigBird", pooler=_POOLER, pooled=NEXT_SENTENCE)],
        "model_type": "big_bird",
        "hidden_act": activation,
        "torch_dtype": "float32",
        **_FIXED,
        **special_tokens(config, _DEFAULTS["pad_token_id"], _SPECIAL_TOKENS),
        **{key: getattr(config, field) for field, key in _NAMES.items()},
        _ATTENTION: "original_full" if config.block_size is None else "block_sparse",
        "block_size": config.block_size or _DEFAULTS["block_size"],
        _RANDOM: config.num_random_blocks,
    }


def table(config: BigBirdConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the heads of pretraining."""
    embeddings, hf_layer, layer = "bert.embeddings", "bert.encoder.layer.{i}", "model/encoder/layers"
    biases = {f"{layer}/attention/{name}/bias" for name in ("query", "key", "value")}
    return [
        TensorMapping("model/embeddings/token_embedder/embedding", f"{embeddings}.word_embeddings.weight"),
        TensorMapping("model/embeddings/position_embedder/embedding", f"{embeddings}.position_embeddings.weight"),
        TensorMapping("model/embeddings/token_type_embedder/embedding", f"{embeddings}.token_type_embeddings.weight"),
        *norm("model/embeddings/norm", f"{embeddings}.LayerNorm"),
        *(each for each in attention(layer, hf_layer) if config.qkv_bias or each.name not in biases),
        *dense(f"{layer}/mlp/wi", f"{hf_layer}.intermediate.dense"),
        *dense(f"{layer}/mlp/wo", f"{hf_layer}.output.dense"),
        *norm(f"{layer}/mlp_norm", f"{hf_layer}.output.LayerNorm"),
        *dense(f"{MASKED_LM}/dense", "cls.predictions.transform.dense"),
        *norm(f"{MASKED_LM}/norm", "cls.predictions.transform.LayerNorm"),
        TensorMapping(f"{MASKED_LM}/bias", "cls.predictions.bias"),
        *dense(f"{NEXT_SENTENCE}/pooler", "bert.pooler"),
        *dense(f"{NEXT_SENTENCE}/classifier", "cls.seq_relationship"),
    ]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    sequence, tokens, choices = (f"{OBJECTIVE}{name}" for name in (SEQUENCE, TOKENS, CHOICES))
    dense_first = dense(f"{sequence}/dense", "classifier.dense") + dense(
        f"{sequence}/classifier", "classifier.out_proj"
    )
    pooled = dense(f"{choices}/pooler", "bert.pooler") + dense(f"{choices}/classifier", "classifier")
    spans = [
        *dense(f"{OBJECTIVE}{SPANS}/mlp/wi", "qa_classifier.intermediate.dense"),
        *dense(f"{OBJECTIVE}{SPANS}/mlp/wo", "qa_classifier.output.dense"),
        *norm(f"{OBJECTIVE}{SPANS}/norm", "qa_classifier.output.LayerNorm"),
        *dense(f"{OBJECTIVE}{SPANS}/classifier", "qa_classifier.qa_outputs"),
    ]
    prefix = "BigBirdFor"
    return (
        HeadClass(f"{prefix}SequenceClassification", SEQUENCE, tuple(dense_first), head_form(ActivatedFirstToken)),
        HeadClass(
            f"{prefix}TokenClassification",
            TOKENS,
            tuple(dense(f"{tokens}/classifier", "classifier")),
            head_form(heads.EachToken),
        ),
        HeadClass(
            f"{prefix}MultipleChoice", CHOICES, tuple(pooled), head_form(heads.PooledFirstToken), has_labels=False
        ),
        # It always has the dropout rate of the model.
        HeadClass(
            f"{prefix}QuestionAnswering",
            SPANS,
            tuple(spans),
            lambda hf_config: FeedForwardEachToken(),
            has_labels=False,
        ),
    )


def tied(config: BigBirdConfig) -> dict[str, str]:
    """Returns the copies that a masked-LM head has; see `tensor_mapping.Family.tied`."""
    head = "cls.predictions"
    return {
        f"{head}.decoder.weight": "bert.embeddings.word_embeddings.weight",
        f"{head}.decoder.bias": f"{head}.bias",
    }


# Classes with a pooler that they do not use.
_UNUSED_POOLER = tuple(f"BigBirdFor{task}" for task in ("MaskedLM", "SequenceClassification", "TokenClassification"))


def _unused(config: BigBirdConfig, name: str) -> dict[str, np.ndarray]:
    if name not in _UNUSED_POOLER:
        return {}
    size = config.embed_dim
    return {
        "bert.pooler.weight": np.zeros((size, size), np.float32),
        "bert.pooler.bias": np.zeros(size, np.float32),
    }


FAMILY = Family(
    unused=_unused,
    model_types=("big_bird",),
    config_class=BigBirdConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix="bert.",
    # Poolers of classes that do not use them.
    ignored=re.compile(r"bert\.(embeddings\.(position_ids|token_type_ids)|pooler\.(weight|bias))"),
    tied=tied,
    sentencepiece="spiece.model",
    tensorflow=TensorFlowFormat(
        # The norm of the embeddings belongs to the encoder.
        markers=("bert/encoder/LayerNorm/gamma", "bert/encoder/layer_0/attention/self/query/kernel"),
        names=(
            *TENSORFLOW_HEADS,
            (r"^bert\.embeddings\.LayerNorm", "bert.encoder.LayerNorm"),
            (r"^bert\.pooler", "bert.pooler.dense"),
            (r"\.transform\.dense\.", ".transform."),
            (r"\.transform\.LayerNorm\.weight$", ".transform.gamma"),
            (r"\.transform\.LayerNorm\.bias$", ".transform.beta"),
        ),
        objective=lambda config, shapes: (Joint, {"objectives": [MaskedLM(), NextSentence()]}),
        renamed=((r"^transform/", "cls/predictions/transform/"),),
    ),
)
