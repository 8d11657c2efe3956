"""Maps BERT and RoBERTa, with the heads of pretraining and of classification, to transformers.

`position_offset` of the configuration selects the class: RoBERTa if positive, otherwise BERT. The pooler belongs to the
next-sentence head. RoBERTa does not have this head; the pooler of transformers' `RobertaModel` is not pretrained.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, TOKENS, dropout_rate, head_table, question_answering
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorFlowFormat, TensorMapping, dense, norm
from t5x_like.models.bert import BertConfig
from t5x_like.objectives import heads
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

# Field of the configuration of BERT and of its relatives: key of config.json.
_NAMES = {
    "vocab_size": "vocab_size",
    "embedding_dim": "embedding_size",
    "embed_dim": "hidden_size",
    "bottleneck_dim": "intra_bottleneck_size",
    "mlp_dim": "intermediate_size",
    "num_mlps": "num_feedforward_networks",
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
_SIZES = ("vocab_size", "embed_dim", "mlp_dim", "num_heads", "num_layers")
_RATES = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "norm_epsilon": 1e-12, "initializer_range": 0.02}
# Keys with one supported value.
FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
# Key of a layer -> indices of the heads that it lacks.
_PRUNED_HEADS = "pruned_heads"
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
POOLER = f"{NEXT_SENTENCE}/pooler/"


def keys(required: Sequence[str] = _SIZES, **defaults: Any) -> dict[str, Any]:
    """Returns `ConfigMap.keys` of BERT or a relative.

    Args:
      required: Fields whose keys have no default in transformers.
      **defaults: Defaults of further fields, if they are not those of BERT.
    """
    rates = {field: defaults.pop(field, value) for field, value in _RATES.items()}
    found = {field: (_NAMES[field], value) for field, value in {**defaults, **rates}.items()}
    return {field: _NAMES[field] for field in required} | found


_BERT = ConfigMap(
    config_class=BertConfig,
    model="BERT",
    model_type="bert",
    keys=keys(num_token_types=2),
    defaults={"hidden_act": "gelu", "max_position_embeddings": 512, "pad_token_id": 0},
    fixed=FIXED,
    activations=ACTIVATIONS,
    classes={
        (): "BertModel",
        (MASKED_LM,): "BertForMaskedLM",
        (NEXT_SENTENCE,): "BertForNextSentencePrediction",
        (MASKED_LM, NEXT_SENTENCE): "BertForPreTraining",
    },
    poolers={"pooler": POOLER, "pooled": NEXT_SENTENCE},
    first=("architectures", "model_type", "hidden_act", "max_position_embeddings"),
)
# Position i of RoBERTa has row i + padding_id + 1 of the table.
ROBERTA = dataclasses.replace(
    _BERT,
    model="RoBERTa",
    model_type="roberta",
    defaults={**_BERT.defaults, "pad_token_id": 1},
    classes={(): "RobertaModel", (MASKED_LM,): "RobertaForMaskedLM"},
    poolers={},
    tokens={"bos_token_id": 0, "eos_token_id": 2},
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> BertConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    entries = ROBERTA if hf_config["model_type"] == "roberta" else _BERT
    hf_config = entries.with_defaults(hf_config)
    found = entries.read(hf_config)
    if "RobertaForMaskedLM" in fields.strings(hf_config, "architectures"):
        check_head(found["activations"], f"hidden_act {hf_config['hidden_act']!r}", "RoBERTa")
    found["num_heads"] -= _pruned_heads(hf_config)
    return BertConfig(**found | positions(hf_config, found["padding_id"] + 1 if entries is ROBERTA else 0))


def positions(hf_config: Mapping[str, Any], offset: int) -> dict[str, int]:
    """Returns the fields of a table of positions that has `offset` rows without a position."""
    return {"max_length": fields.size(hf_config, "max_position_embeddings") - offset, "position_offset": offset}


def config_to_huggingface(config: BertConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    entries = ROBERTA if config.position_offset else _BERT
    all_heads = config.num_heads
    if config.num_heads * config.head_dim < config.embed_dim and config.embed_dim % config.head_dim == 0:
        all_heads = config.embed_dim // config.head_dim
    if entries is ROBERTA:
        check_positions(config, entries.model)
    length = config.max_length + config.position_offset
    found = entries.to_json(dataclasses.replace(config, num_heads=all_heads), heads, max_position_embeddings=length)
    if found["architectures"] == ["RobertaForMaskedLM"]:
        check_head(config.activations, f"activations {config.activations}", "RoBERTa")
    return found | _pruned(config, all_heads)


def check_positions(config: BertConfig, model: str) -> None:
    """Checks that the positions of a configuration start after the padding id, as in RoBERTa."""
    if config.padding_id != config.position_offset - 1:
        raise UserError(
            f"position_offset={config.position_offset} with padding_id={config.padding_id}: not supported by "
            f"transformers' {model}, whose positions start at padding_id + 1. Set "
            f"padding_id={config.position_offset - 1}."
        )


def _pruned(config: BertConfig, all_heads: int) -> dict[str, Any]:
    """Returns the keys of a model with fewer heads than fit into its hidden states.

    transformers makes a layer with all heads, and removes some before it loads tensors. Which ones it removes does not
    matter, because the tensors have the heads that are left.
    """
    if config.num_heads == all_heads:
        return {}
    removed = list(range(config.num_heads, all_heads))
    return {_PRUNED_HEADS: {str(layer): removed for layer in range(config.num_layers)}}


def _pruned_heads(hf_config: Mapping[str, Any]) -> int:
    """Returns the number of heads that each layer of a model of transformers lacks.

    Raises:
      UserError: layers lack different numbers of heads.
    """
    pruned = fields.mapping(hf_config, _PRUNED_HEADS) if hf_config.get(_PRUNED_HEADS) else {}
    numbers = [len(set(pruned.get(str(layer), ()))) for layer in range(fields.size(hf_config, _NAMES["num_layers"]))]
    if len(set(numbers)) > 1:
        raise UserError(
            f"{_PRUNED_HEADS} {pruned}: the layers lack {', '.join(map(str, numbers))} heads. Layers with different "
            "numbers of heads are not supported. Remove the same number from each."
        )
    return numbers[0] if numbers else 0


def check_head(activations: Sequence[str], source: str, model: str) -> None:
    """Checks that a masked-LM head uses exact GELU.

    Args:
      activations: Activations of the model.
      source: Where they were set.
      model: Name of the model.

    Raises:
      UserError: they are others.
    """
    if activations[0] != "gelu_exact":
        raise UserError(
            f"{source}: not supported with a masked-LM head, since transformers' {model} head always uses exact GELU. "
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
    hf_layer, layer = f"{model_type}.encoder.layer.{{i}}", "model/encoder/layers"
    return [
        *embeddings(model_type),
        *attention(layer, hf_layer),
        *dense(f"{layer}/mlp/wi", f"{hf_layer}.intermediate.dense"),
        *dense(f"{layer}/mlp/wo", f"{hf_layer}.output.dense"),
        *norm(f"{layer}/mlp_norm", f"{hf_layer}.output.LayerNorm"),
    ]


def embeddings(model_type: str) -> list[TensorMapping]:
    """Maps the embeddings; see `encoder`."""
    name, hf_name = "model/embeddings", f"{model_type}.embeddings"
    return [
        TensorMapping(f"{name}/token_embedder/embedding", f"{hf_name}.word_embeddings.weight"),
        TensorMapping(f"{name}/position_embedder/embedding", f"{hf_name}.position_embeddings.weight"),
        TensorMapping(f"{name}/token_type_embedder/embedding", f"{hf_name}.token_type_embeddings.weight"),
        *norm(f"{name}/norm", f"{hf_name}.LayerNorm"),
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
    tagging = head_table(TOKENS, classifier="classifier")
    choices = head_table(CHOICES, pooler=f"{hf_config['model_type']}.pooler.dense", classifier="classifier")
    spans = heads.EachToken(dropout_rate=0.0)
    if hf_config["model_type"] == "bert":
        pooled = head_table(SEQUENCE, pooler="bert.pooler.dense", classifier="classifier")
        form = head_form(heads.PooledFirstToken)
        return (
            HeadClass("BertForSequenceClassification", SEQUENCE, pooled, form),
            HeadClass("BertForTokenClassification", TOKENS, tagging, head_form(heads.EachToken)),
            HeadClass("BertForMultipleChoice", CHOICES, choices, form, has_labels=False),
            question_answering("BertForQuestionAnswering", spans),
        )
    classifier = head_table(SEQUENCE, dense="classifier.dense", classifier="classifier.out_proj")
    # Multiple choice always has the dropout rate of the model.
    pooled_form = lambda hf_config: heads.PooledFirstToken()  # noqa: E731
    return (
        HeadClass("RobertaForSequenceClassification", SEQUENCE, classifier, head_form(heads.DenseFirstToken)),
        HeadClass("RobertaForTokenClassification", TOKENS, tagging, head_form(heads.EachToken)),
        HeadClass("RobertaForMultipleChoice", CHOICES, choices, pooled_form, has_labels=False),
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
