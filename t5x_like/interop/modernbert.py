"""Maps ModernBERT and the encoders of its shape, with the masked-LM head or with heads of tasks, to transformers."""

from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields, rope
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.head_classes import CHOICES, SEQUENCE, SPANS, TOKENS, dropout_rate
from t5x_like.interop.rotary_decoders import FULL, SLIDING, every, single_window, windows_from_json
from t5x_like.interop.tables import OBJECTIVE
from t5x_like.interop.tensor_mapping import Family, HeadClass, TensorMapping, dense, norm
from t5x_like.layers.layer_kinds import over_layers
from t5x_like.models.modernbert import ModernBertConfig
from t5x_like.objectives.heads import transformed_tokens

MASKED_LM = f"{OBJECTIVE}masked_lm"
# Keys of encoders and decoders: field -> key of config.json and the default of transformers.
KEYS = {
    "vocab_size": ("vocab_size", 50368),
    "embed_dim": ("hidden_size", 768),
    "mlp_dim": ("intermediate_size", 1152),
    "num_layers": ("num_hidden_layers", 22),
    "num_heads": ("num_attention_heads", 12),
    "max_length": ("max_position_embeddings", 8192),
    "norm_epsilon": ("norm_eps", 1e-5),
    "attention_dropout_rate": ("attention_dropout", 0.0),
    "initializer_range": ("initializer_range", 0.02),
}
# Keys with one supported value, which is written.
FIXED = {
    **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), False),
    **dict.fromkeys(("embedding_dropout", "mlp_dropout"), 0.0),
    **{
        "tie_word_embeddings": True,
        "decoder_bias": True,
        "classifier_activation": "gelu",
        "initializer_cutoff_factor": 2.0,
    },
}
DEFAULTS = {"hidden_activation": "gelu", "global_rope_theta": 160000.0, "pad_token_id": 50283, "local_attention": 128}
# The activation of the heads, `classifier_activation`, is the same one here.
ACTIVATIONS = {"gelu": ("gelu_exact", "linear")}
_ENTRIES = ConfigMap(
    config_class=ModernBertConfig,
    model="ModernBert",
    model_type="modernbert",
    keys=KEYS,
    defaults=DEFAULTS | {"local_rope_theta": 10000.0, "classifier_pooling": "cls"},
    fixed=FIXED,
    activations=ACTIVATIONS,
    activation_key="hidden_activation",
    classes={(): "ModernBertModel", (MASKED_LM,): "ModernBertForMaskedLM"},
    required={"rope_scaling": None, "tied_embeddings": True},
    tokens={f"{name}_token_id": 50281 + (name in ("eos", "sep")) for name in ("bos", "eos", "cls", "sep")},
)


def kinds_from_json(hf_config: Mapping[str, Any], window: int) -> dict[str, Any]:
    """Returns the fields of the windows and of the rotations.

    Args:
      hf_config: Contents of config.json with defaults.
      window: Window of the layers that have one.

    Raises:
      UserError: positions are scaled.
    """
    period = fields.size({"global_attn_every_n_layers": 3, **hf_config}, "global_attn_every_n_layers")
    types = fields.strings(hf_config, "layer_types") or every(period, full=0)(hf_config)
    found = {"attention_windows": windows_from_json(types, window, fields.size(hf_config, "num_hidden_layers"))}
    thetas = {
        "rope_theta": ("global_rope_theta", FULL),
        "local_rope_theta": ("local_rope_theta", SLIDING),
    }
    for field, (key, kind) in thetas.items():
        of_kind = rope.of_layers({**hf_config, "rope_theta": hf_config[key]}, kind)
        found[field], scaling, _ = rope.from_json(of_kind)
        if scaling is not None:
            raise UserError(
                f"rope_scaling {scaling}: not supported for {hf_config['model_type']}. Positions must not be scaled."
            )
    # transformers drops the weights and the output of the attention at the same rate.
    return found | {"dropout_rate": fields.number(hf_config, "attention_dropout")}


def kinds_to_json(config: Any, model: str, window: int | None) -> dict[str, Any]:
    """Returns the keys of the windows and of the rotations.

    Args:
      config: The configuration.
      model: Name of the model.
      window: Value of `local_attention`; None if no layer has a window.

    Raises:
      UserError: transformers 4.57 does not read which layers have a window.
    """
    windows = over_layers(config.attention_windows, config.num_layers)
    full = [index for index, each in enumerate(windows) if each is None]
    period = full[1] if len(full) > 1 else config.num_layers
    if windows != [None if index % period == 0 else max(filter(None, windows)) for index in range(len(windows))]:
        raise UserError(
            f"attention_windows={config.attention_windows}: not supported by transformers' {model}, in which the first "
            "of each n layers has no window, and the others have one."
        )
    return {
        "global_attn_every_n_layers": period,
        "local_attention": 128 if window is None else window,
        "layer_types": [FULL if each is None else SLIDING for each in windows],
        "global_rope_theta": config.rope_theta,
        "local_rope_theta": config.local_rope_theta,
    }


def config_from_huggingface(hf_config: Mapping[str, Any]) -> ModernBertConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    hf_config = _ENTRIES.with_defaults(hf_config)
    local = fields.size(hf_config, "local_attention")
    kinds = kinds_from_json(hf_config, local // 2 + 1)
    pooling = {"classifier_pooling": hf_config["classifier_pooling"]}
    return ModernBertConfig(**_ENTRIES.read(hf_config) | kinds | pooling)


def config_to_huggingface(config: ModernBertConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    window = single_window(config, "ModernBert")
    kinds = kinds_to_json(config, "ModernBert", window and 2 * (window - 1))
    return _ENTRIES.to_json(config, heads, classifier_pooling=config.classifier_pooling, **kinds)


def layers(stack: str) -> list[TensorMapping]:
    """Maps the embeddings and the layers, without the projections to queries, keys and values."""
    name, hf_name = f"model/{stack}/layers", "model.layers.{i}"
    wi = f"{hf_name}.mlp.Wi.weight"
    return [
        TensorMapping("model/token_embedder/embedding", "model.embeddings.tok_embeddings.weight"),
        *norm("model/embedding_norm", "model.embeddings.norm", bias=False),
        TensorMapping("model/attention_norms/scale", f"{hf_name}.attn_norm.weight", first_layer=1),
        *dense(f"{name}/attention/out", f"{hf_name}.attn.Wo", bias=False, input_dims=2),
        *norm(f"{name}/mlp_norm", f"{hf_name}.mlp_norm", bias=False),
        *(TensorMapping(f"{name}/mlp/wi_{k}/kernel", wi, "linear", part=(k, 2)) for k in range(2)),
        *dense(f"{name}/mlp/wo", f"{hf_name}.mlp.Wo", bias=False),
        *norm(f"model/{stack}/norm", "model.final_norm", bias=False),
    ]


def table(config: ModernBertConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor of the model and of the masked-LM head."""
    name, hf_name = "model/encoder/layers/attention", "model.layers.{i}.attn.Wqkv.weight"
    return [
        *layers("encoder"),
        *(
            TensorMapping(f"{name}/{each}/kernel", hf_name, "linear", part=(k, 3))
            for k, each in enumerate(("query", "key", "value"))
        ),
        *_transform(MASKED_LM),
        TensorMapping(f"{MASKED_LM}/bias", "decoder.bias"),
    ]


def _transform(head: str) -> list[TensorMapping]:
    return [*dense(f"{head}/dense", "head.dense", bias=False), *norm(f"{head}/norm", "head.norm", bias=False)]


def head_classes(hf_config: Mapping[str, Any]) -> tuple[HeadClass, ...]:
    """Returns the classes of downstream tasks; see `tensor_mapping.Family.head_classes`."""

    def head_class(name, head, form, **options):
        mappings = (*_transform(f"{OBJECTIVE}{head}"), *dense(f"{OBJECTIVE}{head}/classifier", "classifier"))
        return HeadClass(f"ModernBertFor{name}", head, mappings, form, **options)

    def pooled(hf_config):
        pooling = "mean" if hf_config.get("classifier_pooling") == "mean" else "first"
        return transformed_tokens.TransformedToken(pooling=pooling, dropout_rate=dropout_rate(hf_config, 0.0))

    def each(hf_config):
        return transformed_tokens.EachTransformedToken(dropout_rate=dropout_rate(hf_config, 0.0))

    return (
        head_class("SequenceClassification", SEQUENCE, pooled),
        head_class("TokenClassification", TOKENS, each),
        head_class("QuestionAnswering", SPANS, each, has_labels=False),
        head_class("MultipleChoice", CHOICES, pooled, has_labels=False),
    )


FAMILY = Family(
    model_types=("modernbert",),
    config_class=ModernBertConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    head_classes=head_classes,
    prefix="model.",
    free_fields=("max_length",),
    tied=lambda config: {"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    default_tokens=_ENTRIES.tokens,
)
