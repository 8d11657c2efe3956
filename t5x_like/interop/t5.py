"""Maps T5 to transformers' `T5ForConditionalGeneration` and `T5ForSequenceClassification`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.interop import fields
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import SEQUENCE, dropout_rate, head_table, question_answering
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.models.t5 import T5Config
from t5x_like.objectives import heads

# Key of transformers 5: whether the inputs of the logits are multiplied by 1 / sqrt(d_model), as in T5 1.0. A T5 1.1
# may omit logits that equal the embeddings.
_SCALED = "scale_decoder_outputs"
# Ids in T5's vocabulary.
_SPECIAL_TOKENS = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}

_CONFIG = ConfigMap(
    config_class=T5Config,
    model="T5",
    model_type="t5",
    keys={
        "vocab_size": "vocab_size",
        "embed_dim": "d_model",
        "mlp_dim": "d_ff",
        "num_heads": "num_heads",
        "head_dim": "d_kv",
        "encoder_layers": "num_layers",
        "decoder_layers": "num_decoder_layers",
        "tied_embeddings": ("tie_word_embeddings", True),
        "dropout_rate": ("dropout_rate", 0.1),
        "relpos_buckets": ("relative_attention_num_buckets", 32),
        "relpos_max_distance": ("relative_attention_max_distance", 128),
        "norm_epsilon": ("layer_norm_epsilon", 1e-6),
    },
    defaults={"feed_forward_proj": "relu"},
    # `gated-gelu` uses the tanh approximation. `gelu`, which is exact GELU, is not supported because no T5 uses it.
    activations={
        "relu": ("relu",),
        "gelu_new": ("gelu",),
        "gated-gelu": ("gelu", "linear"),
        "gated-gelu_new": ("gelu", "linear"),
        "gated-relu": ("relu", "linear"),
    },
    activation_key="feed_forward_proj",
    classes={(): "T5ForConditionalGeneration"},
    tokens=_SPECIAL_TOKENS,
    first=("architectures", "model_type", "is_encoder_decoder"),
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> T5Config:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = _CONFIG.with_defaults(hf_config)
    hf_config.setdefault("num_decoder_layers", hf_config.get("num_layers"))
    # transformers 5 writes tie_word_embeddings=True for every T5, and whether it scales the logits by a key of its own.
    hf_config["tie_word_embeddings"] = hf_config.get(_SCALED, hf_config["tie_word_embeddings"])
    return T5Config(**_CONFIG.read(hf_config))


def config_to_huggingface(config: T5Config, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    return _CONFIG.to_json(config, is_encoder_decoder=True)


def table(config: T5Config) -> list[TensorMapping]:
    """Returns the mapping of every tensor."""
    gated = len(config.activations) > 1
    mappings = [
        TensorMapping("model/token_embedder/embedding", "shared.weight"),
        *_stack("encoder", {"attention": "SelfAttention", "mlp": "DenseReluDense"}, gated),
        *_stack(
            "decoder",
            {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention", "mlp": "DenseReluDense"},
            gated,
        ),
    ]
    return mappings if config.tied_embeddings else [*mappings, *dense("model/logits", "lm_head", bias=False)]


def _stack(stack: str, blocks: Mapping[str, str], gated: bool) -> list[TensorMapping]:
    """Returns the mappings of a stack; `blocks` has the name of each block -> its name in transformers, in order."""
    mappings = [
        TensorMapping(
            f"model/{stack}/relative_bias/table",
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "linear",
        ),
        *norm(f"model/{stack}/norm", f"{stack}.final_layer_norm", bias=False),
    ]
    for index, (block, hf_block) in enumerate(blocks.items()):
        name, hf_layer = f"model/{stack}/layers/{block}", f"{stack}.block.{{i}}.layer.{index}"
        mappings += norm(f"{name}_norm", f"{hf_layer}.layer_norm", bias=False)
        if block == "mlp":
            projections = {projection: projection for projection in (("wi_0", "wi_1", "wo") if gated else ("wi", "wo"))}
        else:
            projections = {"query": "q", "key": "k", "value": "v", "out": "o"}
        for projection, hf_projection in projections.items():
            input_dims = 2 if projection == "out" else 1
            mappings += dense(
                f"{name}/{projection}", f"{hf_layer}.{hf_block}.{hf_projection}", bias=False, input_dims=input_dims
            )
    return mappings


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""
    hf_head = "classification_head"
    classifier = head_table(SEQUENCE, dense=f"{hf_head}.dense", classifier=f"{hf_head}.out_proj")
    bos_id = fields.with_defaults(hf_config, _SPECIAL_TOKENS)["decoder_start_token_id"]
    return (
        HeadClass("T5ForSequenceClassification", SEQUENCE, classifier, _form, model_prefix=_CLASSIFIER_PREFIX),
        question_answering("T5ForQuestionAnswering", heads.EachShiftedToken(bos_id=bos_id, dropout_rate=0.0)),
    )


def _form(hf_config: Mapping[str, Any]) -> heads.HeadForm:
    found = fields.with_defaults(hf_config, _SPECIAL_TOKENS)
    return heads.DecoderLastToken(
        bos_id=found["decoder_start_token_id"], dropout_rate=dropout_rate(hf_config, 0.0), initial_stddev=None
    )


def _omitted(hf_config: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the logits of a T5 1.1 of transformers 5, which are not stored while they equal the embeddings."""
    return {"lm_head.weight": "shared.weight"} if hf_config.get(_SCALED) is False else {}


# Prefix of the names of the model's tensors in `T5ForSequenceClassification`.
_CLASSIFIER_PREFIX = "transformer."
# Copies of the embeddings, and a table that old versions of transformers wrote and did not read.
_IGNORED = re.compile(
    r"(encoder|decoder)\.embed_tokens\.weight"
    r"|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
)

FAMILY = Family(
    model_types=("t5",),
    config_class=T5Config,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    sentencepiece="spiece.model",
    default_tokens=_SPECIAL_TOKENS,
    head_classes=head_classes,
    name_substitutions=((rf"^{re.escape(_CLASSIFIER_PREFIX)}", ""),),
    ignored=_IGNORED,
    omitted=_omitted,
    tied=lambda config: {"lm_head.weight": "shared.weight"} if config.tied_embeddings else {},
)
