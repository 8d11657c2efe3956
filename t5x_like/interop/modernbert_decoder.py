"""Maps Ettin's decoders to transformers."""

from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.interop import fields, modernbert
from t5x_like.interop.config_map import ConfigMap
from t5x_like.interop.rotary_decoders import single_window
from t5x_like.interop.tensor_mapping import Family, TensorMapping, dense, norm
from t5x_like.models.modernbert import ModernBertDecoderConfig

_MODEL = "ModernBertDecoder"
_ENTRIES = ConfigMap(
    config_class=ModernBertDecoderConfig,
    model=_MODEL,
    model_type="modernbert-decoder",
    keys=modernbert.KEYS,
    # transformers 4.57 has another default of `local_rope_theta`, which it does not use; see docs/families/rotary.md.
    defaults={key: value for key, value in modernbert.DEFAULTS.items() if key != "pad_token_id"}
    | {"local_rope_theta": 10000.0},
    fixed=modernbert.FIXED,
    activations=modernbert.ACTIVATIONS,
    activation_key="hidden_activation",
    classes={(): f"{_MODEL}ForCausalLM"},
    required={"rope_scaling": None, "tied_embeddings": True},
    tokens={"pad_token_id": 50283, **modernbert.FAMILY.default_tokens},
)


def config_from_huggingface(hf_config: Mapping[str, Any]) -> ModernBertDecoderConfig:
    """Converts the contents of config.json to a configuration; see `tensor_mapping.Family.config_from_json`."""
    stored, hf_config = hf_config, _ENTRIES.with_defaults(hf_config)
    # transformers 4.57 saves `sliding_window` alone, which is half of `local_attention`.
    key = "local_attention" if "local_attention" in stored or "sliding_window" not in stored else "sliding_window"
    window = fields.size(hf_config, key) // (2 if key == "local_attention" else 1)
    kinds = modernbert.kinds_from_json(hf_config, window)
    return ModernBertDecoderConfig(**_ENTRIES.read(hf_config) | kinds)


def config_to_huggingface(config: ModernBertDecoderConfig, heads: Iterable[str] = ()) -> dict[str, Any]:
    """Converts a configuration to the contents of config.json; see `tensor_mapping.Family.config_to_json`."""
    window = single_window(config, _MODEL) or 64
    kinds = modernbert.kinds_to_json(config, _MODEL, 2 * window) | {"sliding_window": window}
    found = _ENTRIES.to_json(config, heads, **kinds)
    if config.special_tokens is None and found["pad_token_id"] is None:  # which transformers 5 refuses for this model
        found["pad_token_id"] = config.vocab_size - 1
    return found


def table(config: ModernBertDecoderConfig) -> list[TensorMapping]:
    """Returns the mapping of every tensor."""
    name, hf_name = "model/decoder/layers/attention", "model.layers.{i}.attn"
    projections = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
    return [
        *modernbert.layers("decoder"),
        *(each for k, v in projections.items() for each in dense(f"{name}/{k}", f"{hf_name}.{v}", bias=False)),
        *dense("model/head", "lm_head.dense", bias=False),
        *norm("model/head_norm", "lm_head.norm", bias=False),
        TensorMapping("model/bias", "decoder.bias"),
    ]


FAMILY = Family(
    model_types=("modernbert-decoder",),
    config_class=ModernBertDecoderConfig,
    config_from_json=config_from_huggingface,
    config_to_json=config_to_huggingface,
    table=table,
    prefix="model.",
    free_fields=("max_length",),
    tied=modernbert.FAMILY.tied,
    default_tokens=_ENTRIES.tokens,
)
