"""Maps T5 to transformers' `T5ForConditionalGeneration` and `T5ForSequenceClassification`."""

import re
import types
from collections.abc import Callable, Iterable, Mapping
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

BIAS = "{stack}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"
"""The table of relative position biases of a layer."""


def scales_logits(hf_config: Mapping[str, Any]) -> bool | None:
    """Returns whether the inputs of the logits are scaled, which only tied logits are; None if no key tells.

    transformers 5 writes tie_word_embeddings=True for every T5, and another key for the scale, but none for mT5, which
    it never scales.

    Args:
      hf_config: Contents of config.json.
    """
    version = str(hf_config.get("transformers_version")).partition(".")[0]
    if hf_config.get("model_type") == "mt5" and version.isdecimal() and int(version) > 4:
        return False
    return hf_config.get(_SCALED, hf_config.get("tie_word_embeddings"))


class T5ConfigMap(ConfigMap):
    """The table of T5 and of the families that differ from it by few keys."""

    def from_json(self, hf_config: Mapping[str, Any]) -> T5Config:
        """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
        hf_config = self.with_defaults(hf_config)
        hf_config.setdefault("num_decoder_layers", hf_config.get("num_layers"))
        hf_config["tie_word_embeddings"] = scales_logits(hf_config)
        return self.config_class(**self.read(hf_config))

    def to_json(self, config: T5Config, heads: Iterable[str] = (), **more: Any) -> dict[str, Any]:
        """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
        return super().to_json(config, is_encoder_decoder=True, **more)


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
        TensorMapping(f"model/{stack}/relative_bias/table", BIAS.format(stack=stack, layer=0), "linear"),
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


def _form(hf_config: Mapping[str, Any]) -> heads.HeadForm:
    found = fields.with_defaults(hf_config, _SPECIAL_TOKENS)
    return heads.DecoderLastToken(
        bos_id=found["decoder_start_token_id"], dropout_rate=dropout_rate(hf_config, 0.0), initial_stddev=None
    )


def _omitted(hf_config: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the logits of a T5 1.1 of transformers 5, which are not stored while they equal the embeddings."""
    unscaled = scales_logits(hf_config) is False and hf_config.get("tie_word_embeddings")
    return {"lm_head.weight": "shared.weight"} if unscaled else {}


# Prefix of the names of the model's tensors in `T5ForSequenceClassification`.
_CLASSIFIER_PREFIX = "transformer."
# Copies of the embeddings, and a table that old versions of transformers wrote and did not read.
_IGNORED = re.compile(
    r"(encoder|decoder)\.embed_tokens\.weight"
    r"|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
)


def family(
    name: str,
    model_type: str,
    config_class: type[T5Config],
    *,
    activation: str = "gated-gelu",
    tied: bool = False,
    table: Callable[[Any], list[TensorMapping]] = table,
    config_map: type[T5ConfigMap] = T5ConfigMap,
    keys: Mapping[str, str | tuple[str, Any]] = types.MappingProxyType({}),
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
) -> Family:
    """Returns T5, or a family that differs from it by names.

    Args:
      name: Its name in the classes of transformers, such as `T5` in `T5ForConditionalGeneration`.
      model_type: The value of `model_type`.
      config_class: Class of its configuration.
      activation: Default of `feed_forward_proj` in transformers.
      tied: Default of `tie_word_embeddings` in transformers.
      table: Returns the mapping of every tensor.
      config_map: Class of the table of config.json.
      keys: Keys that T5 does not have; see `ConfigMap`.
      defaults: Defaults of further keys without a field.
    """
    config = config_map(
        config_class=config_class,
        model=name,
        model_type=model_type,
        classes={(): f"{name}ForConditionalGeneration"},
        keys={
            "vocab_size": "vocab_size",
            "embed_dim": "d_model",
            "mlp_dim": "d_ff",
            "num_heads": "num_heads",
            "head_dim": "d_kv",
            "encoder_layers": "num_layers",
            "decoder_layers": "num_decoder_layers",
            "tied_embeddings": ("tie_word_embeddings", tied),
            "dropout_rate": ("dropout_rate", 0.1),
            "relpos_buckets": ("relative_attention_num_buckets", 32),
            "relpos_max_distance": ("relative_attention_max_distance", 128),
            "norm_epsilon": ("layer_norm_epsilon", 1e-6),
            **keys,
        },
        defaults={"feed_forward_proj": activation, **defaults},
        # `gated-gelu` uses the tanh approximation. `gelu`, which is exact GELU, is not supported because no T5 uses it.
        activations={
            "relu": ("relu",),
            "gelu_new": ("gelu",),
            "gated-gelu": ("gelu", "linear"),
            "gated-gelu_new": ("gelu", "linear"),
            "gated-relu": ("relu", "linear"),
            "gated-silu": ("silu", "linear"),
        },
        activation_key="feed_forward_proj",
        tokens=_SPECIAL_TOKENS,
        first=("architectures", "model_type", "is_encoder_decoder"),
    )

    def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
        hf_head = "classification_head"
        classifier = head_table(SEQUENCE, dense=f"{hf_head}.dense", classifier=f"{hf_head}.out_proj")
        bos_id = fields.with_defaults(hf_config, _SPECIAL_TOKENS)["decoder_start_token_id"]
        answers = heads.EachShiftedToken(bos_id=bos_id, dropout_rate=0.0)
        return (
            HeadClass(f"{name}ForSequenceClassification", SEQUENCE, classifier, _form, model_prefix=_CLASSIFIER_PREFIX),
            question_answering(f"{name}ForQuestionAnswering", answers),
        )

    return Family(
        model_types=(model_type,),
        config_class=config_class,
        config_from_json=config.from_json,
        config_to_json=config.to_json,
        table=table,
        sentencepiece="spiece.model",
        default_tokens=_SPECIAL_TOKENS,
        head_classes=head_classes,
        name_substitutions=((rf"^{re.escape(_CLASSIFIER_PREFIX)}", ""),),
        ignored=_IGNORED,
        omitted=_omitted,
        tied=lambda config: {"lm_head.weight": "shared.weight"} if config.tied_embeddings else {},
    )


FAMILY = family("T5", "t5", T5Config, activation="relu", tied=True)
