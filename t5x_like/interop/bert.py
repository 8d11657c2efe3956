"""Maps BERT and RoBERTa, with the heads of pretraining and of classification, to transformers.

`position_offset` of the configuration selects the class: RoBERTa if positive, otherwise BERT. The pooler belongs to the
next-sentence head. RoBERTa does not have this head; the pooler of transformers' `RobertaModel` is not pretrained.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, special_token_fields
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, architecture, dropout_rate, question_answering
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorFlowFormat, TensorMapping, dense, norm
from t5x_like.models.bert import BertConfig
from t5x_like.models.mobilebert import MobileBertConfig
from t5x_like.objectives import heads
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

NAMES = {
    # field of the configuration: key of config.json
    "vocab_size": "vocab_size",
    "embed_dim": "hidden_size",
    "mlp_dim": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "num_token_types": "type_vocab_size",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
# Defaults of transformers for missing keys.
_DEFAULTS = {
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
}
# Key of a layer -> indices of the heads that it lacks.
_PRUNED_HEADS = "pruned_heads"
_PADDING = {"bert": 0, "roberta": 1}
_SPECIAL_TOKENS = {"bert": {}, "roberta": {"bos_token_id": 0, "eos_token_id": 2}}
# Keys with one supported value.
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
# Activation in transformers -> activation here. The first name of each activation is written.
ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu": "gelu_exact",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

MASKED_LM, NEXT_SENTENCE = f"{OBJECTIVE}masked_lm", f"{OBJECTIVE}next_sentence"
_POOLER = f"{NEXT_SENTENCE}/pooler/"
# Model type -> heads -> class of transformers.
_ARCHITECTURES = {
    "bert": {
        (): "BertModel",
        (MASKED_LM,): "BertForMaskedLM",
        (NEXT_SENTENCE,): "BertForNextSentencePrediction",
        (MASKED_LM, NEXT_SENTENCE): "BertForPreTraining",
    },
    "roberta": {(): "RobertaModel", (MASKED_LM,): "RobertaForMaskedLM"},
}


def config_from_huggingface(hf_config: Mapping[str, Any]) -> BertConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    model_type = hf_config["model_type"]
    hf_config = fields.with_defaults(hf_config, _DEFAULTS, {"pad_token_id": _PADDING[model_type]})
    found = fields.values(hf_config, NAMES, BertConfig)
    fields.check_fixed(hf_config, _FIXED)
    activation = fields.choice(hf_config, "hidden_act", ACTIVATIONS)
    if "RobertaForMaskedLM" in fields.strings(hf_config, "architectures"):
        check_head(activation, f"hidden_act {hf_config['hidden_act']!r}")
    padding = hf_config["pad_token_id"]
    offset = padding + 1 if model_type == "roberta" else 0
    found["num_heads"] -= _pruned_heads(hf_config)
    return BertConfig(
        head_dim=fields.head_dim(hf_config, "hidden_size", "num_attention_heads"),
        max_length=fields.size(hf_config, "max_position_embeddings") - offset,
        position_offset=offset,
        padding_id=padding,
        activations=(activation,),
        **found,
    )


def config_to_huggingface(config: BertConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    activation = fields.activation_name(config.activations, ACTIVATIONS, "BERT")
    if config.unembed_dim != config.embed_dim:
        raise UserError(
            f"embedding_dim={config.embedding_dim}: not supported by transformers' BERT, whose embeddings have the "
            f"size of the hidden states, {config.embed_dim}"
        )
    all_heads = config.num_heads
    if config.num_heads * config.head_dim < config.embed_dim and config.embed_dim % config.head_dim == 0:
        all_heads = config.embed_dim // config.head_dim
    fields.check_head_dim(dataclasses.replace(config, num_heads=all_heads), "BERT")
    model_type = _model_type(config)
    if model_type == "roberta" and config.padding_id != config.position_offset - 1:
        raise UserError(
            f"position_offset={config.position_offset} with padding_id={config.padding_id}: not supported by "
            "transformers' RoBERTa, whose positions start at padding_id + 1. Set "
            f"padding_id={config.position_offset - 1}."
        )
    pooler = {"pooler": _POOLER, "pooled": NEXT_SENTENCE} if model_type == "bert" else {}
    found = architecture(heads, _ARCHITECTURES[model_type], model_type, **pooler)
    if found == "RobertaForMaskedLM":
        check_head(config.activations[0], f"activations {config.activations}")
    return {
        "architectures": [found],
        "model_type": model_type,
        "hidden_act": activation,
        "max_position_embeddings": config.max_length + config.position_offset,
        "torch_dtype": "float32",
        **_FIXED,
        **special_tokens(config, _PADDING[model_type], _SPECIAL_TOKENS[model_type]),
        **{key: getattr(config, field) for field, key in NAMES.items()},
        **_heads_to_huggingface(config, all_heads),
    }


def _heads_to_huggingface(config: BertConfig, all_heads: int) -> dict[str, Any]:
    """Returns the keys of a model with fewer heads than fit into its hidden states.

    transformers makes a layer with all heads, and removes some before it loads tensors. Which ones it removes does not
    matter, because the tensors have the heads that are left.
    """
    if config.num_heads == all_heads:
        return {}
    removed = list(range(config.num_heads, all_heads))
    return {
        NAMES["num_heads"]: all_heads,
        _PRUNED_HEADS: {str(layer): removed for layer in range(config.num_layers)},
    }


def _pruned_heads(hf_config: Mapping[str, Any]) -> int:
    """Returns the number of heads that each layer of a model of transformers lacks.

    Raises:
      UserError: layers lack different numbers of heads.
    """
    pruned = fields.mapping(hf_config, _PRUNED_HEADS) if hf_config.get(_PRUNED_HEADS) else {}
    numbers = [len(set(pruned.get(str(layer), ()))) for layer in range(fields.size(hf_config, NAMES["num_layers"]))]
    if len(set(numbers)) > 1:
        raise UserError(
            f"{_PRUNED_HEADS} {pruned}: the layers lack {', '.join(map(str, numbers))} heads. Layers with different "
            "numbers of heads are not supported. Remove the same number from each."
        )
    return numbers[0] if numbers else 0


def special_tokens(
    config: BertConfig | MobileBertConfig, default_padding: int, default: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the ids for config.json. The padding id is `padding_id`, which masks rows and shifts RoBERTa's positions.

    Args:
      config: configuration of the model.
      default_padding: default of transformers for `pad_token_id`.
      default: ids of the family, for models that were not imported.
    """
    tokens = special_token_fields.to_json(config.special_tokens, {"pad_token_id": config.padding_id, **default})
    pad_token_id = tokens.get("pad_token_id")
    if config.padding_id != (default_padding if pad_token_id is None else pad_token_id):
        tokens["pad_token_id"] = config.padding_id
    return tokens


def check_head(activation: str, source: str) -> None:
    """Checks that RoBERTa's masked-LM head uses exact GELU; `source` says where the activation was set."""
    if activation != "gelu_exact":
        raise UserError(
            f"{source}: not supported with a masked-LM head, since transformers' RoBERTa head always uses exact GELU. "
            "The head here uses the activation of the model."
        )


def table(config: BertConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the heads."""
    model_type = _model_type(config)
    return [
        *encoder(model_type),
        *(roberta_heads() if model_type == "roberta" else pretraining_heads(model_type)),
    ]


def encoder(model_type: str) -> list[TensorMapping]:
    """Maps the embeddings and the layers.

    Args:
      model_type: `bert` or a model type with the same layers, such as `roberta`.
    """
    embeddings, hf_layer, layer = (
        f"{model_type}.embeddings",
        f"{model_type}.encoder.layer.{{i}}",
        "model/encoder/layers",
    )
    return [
        TensorMapping("model/embeddings/token_embedder/embedding", f"{embeddings}.word_embeddings.weight"),
        TensorMapping("model/embeddings/position_embedder/embedding", f"{embeddings}.position_embeddings.weight"),
        TensorMapping("model/embeddings/token_type_embedder/embedding", f"{embeddings}.token_type_embeddings.weight"),
        *norm("model/embeddings/norm", f"{embeddings}.LayerNorm"),
        *attention(layer, hf_layer),
        *dense(f"{layer}/mlp/wi", f"{hf_layer}.intermediate.dense"),
        *dense(f"{layer}/mlp/wo", f"{hf_layer}.output.dense"),
        *norm(f"{layer}/mlp_norm", f"{hf_layer}.output.LayerNorm"),
    ]


def attention(layer: str, hf_layer: str) -> list[TensorMapping]:
    """Maps the self-attention of a layer and its norm.

    Args:
      layer: stored name of the layer.
      hf_layer: name of the layer in transformers.
    """
    return [
        *dense(f"{layer}/attention/query", f"{hf_layer}.attention.self.query"),
        *dense(f"{layer}/attention/key", f"{hf_layer}.attention.self.key"),
        *dense(f"{layer}/attention/value", f"{hf_layer}.attention.self.value"),
        *dense(f"{layer}/attention/out", f"{hf_layer}.attention.output.dense", input_dims=2),
        *norm(f"{layer}/attention_norm", f"{hf_layer}.attention.output.LayerNorm"),
    ]


def pretraining_heads(model_type: str) -> list[TensorMapping]:
    """Maps the heads of masked language modeling and of next-sentence prediction.

    Args:
      model_type: `bert` or `mobilebert`.
    """
    return [
        *dense(f"{MASKED_LM}/dense", "cls.predictions.transform.dense"),
        *norm(f"{MASKED_LM}/norm", "cls.predictions.transform.LayerNorm"),
        TensorMapping(f"{MASKED_LM}/bias", "cls.predictions.bias"),
        *dense(f"{NEXT_SENTENCE}/pooler", f"{model_type}.pooler.dense"),
        *dense(f"{NEXT_SENTENCE}/classifier", "cls.seq_relationship"),
    ]


def roberta_heads() -> list[TensorMapping]:
    """Maps the masked-LM head of RoBERTa."""
    return [
        *dense(f"{MASKED_LM}/dense", "lm_head.dense"),
        *norm(f"{MASKED_LM}/norm", "lm_head.layer_norm"),
        TensorMapping(f"{MASKED_LM}/bias", "lm_head.bias"),
    ]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    sequence, tokens = f"{OBJECTIVE}{SEQUENCE}", f"{OBJECTIVE}{TOKENS}"
    tagging = dense(f"{tokens}/classifier", "classifier")
    choices = dense(f"{OBJECTIVE}{CHOICES}/pooler", f"{hf_config['model_type']}.pooler.dense")
    choices += dense(f"{OBJECTIVE}{CHOICES}/classifier", "classifier")
    spans = heads.EachToken(dropout_rate=0.0)
    if hf_config["model_type"] == "bert":
        pooled = dense(f"{sequence}/pooler", "bert.pooler.dense") + dense(f"{sequence}/classifier", "classifier")
        return (
            HeadClass("BertForSequenceClassification", SEQUENCE, tuple(pooled), head_form(heads.PooledFirstToken)),
            HeadClass("BertForTokenClassification", TOKENS, tuple(tagging), head_form(heads.EachToken)),
            HeadClass(
                "BertForMultipleChoice", CHOICES, tuple(choices), head_form(heads.PooledFirstToken), has_labels=False
            ),
            question_answering("BertForQuestionAnswering", spans),
        )
    classifier = dense(f"{sequence}/dense", "classifier.dense") + dense(f"{sequence}/classifier", "classifier.out_proj")
    return (
        HeadClass("RobertaForSequenceClassification", SEQUENCE, tuple(classifier), head_form(heads.DenseFirstToken)),
        HeadClass("RobertaForTokenClassification", TOKENS, tuple(tagging), head_form(heads.EachToken)),
        # It always has the dropout rate of the model.
        HeadClass(
            *("RobertaForMultipleChoice", CHOICES, tuple(choices), lambda hf_config: heads.PooledFirstToken()),
            has_labels=False,
        ),
        question_answering("RobertaForQuestionAnswering", spans),
    )


def head_form(form: Callable[..., heads.HeadForm]) -> Callable[[Mapping[str, Any]], heads.HeadForm]:
    """Returns a function of config.json that makes a form of a head with the dropout rate of the classifier."""
    return lambda hf_config: form(dropout_rate=dropout_rate(hf_config, None))


def _tied(config: BertConfig) -> dict[str, str]:
    model_type, head = ("roberta", "lm_head") if _model_type(config) == "roberta" else ("bert", "cls.predictions")
    return {
        f"{head}.decoder.weight": f"{model_type}.embeddings.word_embeddings.weight",
        f"{head}.decoder.bias": f"{head}.bias",
    }


def _model_type(config: BertConfig) -> str:
    return "roberta" if config.position_offset else "bert"


# Names of the heads of pretraining in BERT's and ALBERT's released code.
TENSORFLOW_HEADS = (
    (r"^cls\.predictions\.bias$", "cls.predictions.output_bias"),
    (r"^cls\.seq_relationship\.(weight|bias)$", r"cls.seq_relationship.output_\1"),
    (r"output_weight$", "output_weights"),
)

FAMILY = Family(
    model_types=("bert", "roberta"),
    config_class=BertConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix=("bert.", "roberta."),
    # Names in old files, which were converted from TensorFlow.
    name_substitutions=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    # Poolers of classes that do not use them.
    ignored=re.compile(r"(bert|roberta)\.(embeddings\.(position_ids|token_type_ids)|pooler\.dense\.(weight|bias))"),
    tied=_tied,
    tensorflow=TensorFlowFormat(
        markers=("bert/embeddings/LayerNorm/gamma", "bert/encoder/layer_0/attention/self/query/kernel"),
        names=TENSORFLOW_HEADS,
        objective=lambda config, shapes: (Joint, {"objectives": [MaskedLM(), NextSentence()]}),
        config_file="bert_config.json",
    ),
)
