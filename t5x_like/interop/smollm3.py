"""Maps SmolLM 3, with logits or with the heads of classification, to transformers."""

from collections.abc import Iterable, Mapping
from typing import Any

from t5x_like.errors import UserError
from t5x_like.interop import fields
from t5x_like.interop.rotary_decoders import FULL, DecoderFiles, entries
from t5x_like.layers.layer_kinds import over_layers, shortest
from t5x_like.models.smollm3 import SmolLM3Config

_ROTATED, _INTERVAL = "no_rope_layers", "no_rope_layer_interval"


class SmolLM3Files(DecoderFiles):
    """How transformers stores SmolLM 3: `no_rope_layers` is 1 for each layer that rotates."""

    def fields_from_json(self, hf_config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the configuration by name."""
        found = super().fields_from_json(hf_config)
        layers = found["num_layers"]
        if set(fields.strings(hf_config, "layer_types")) - {FULL}:
            raise UserError(f"layer_types {hf_config['layer_types']}: not supported. All layers must be {FULL!r}.")
        interval = fields.size({_INTERVAL: 4, **hf_config}, _INTERVAL)
        rotated = hf_config.get(_ROTATED) or [int((i + 1) % interval != 0) for i in range(layers)]
        if not isinstance(rotated, list) or len(rotated) < layers or any(each not in (0, 1) for each in rotated):
            raise UserError(f"{_ROTATED}: must be a list with 0 or 1 for each of {layers} layers")
        return found | {"rotated": tuple(map(bool, shortest(rotated[:layers])))}

    def config_to_json(self, config: Any, heads: Iterable[str] = ()) -> dict[str, Any]:
        """Converts a configuration to the contents of config.json; see `DecoderFiles.config_to_json`."""
        rotated = [int(each) for each in over_layers(config.rotated, config.num_layers)]
        return super().config_to_json(config, heads) | {_ROTATED: rotated, "layer_types": [FULL] * config.num_layers}


FAMILY = SmolLM3Files(
    entries=entries(
        SmolLM3Config,
        "SmolLM3",
        "smollm3",
        keys={
            "vocab_size": ("vocab_size", 128256),
            "embed_dim": ("hidden_size", 2048),
            "mlp_dim": ("intermediate_size", 11008),
            "num_heads": ("num_attention_heads", 16),
            "num_kv_heads": ("num_key_value_heads", 4),
            "num_layers": ("num_hidden_layers", 36),
            "tied_embeddings": ("tie_word_embeddings", True),
        },
        defaults={"max_position_embeddings": 32768, "rope_theta": 2e6},
        fixed={"attention_bias": False, "mlp_bias": False, "use_sliding_window": False},
        required={"attention_windows": (None,)},
        tokens={"pad_token_id": 128004, "bos_token_id": 128000, "eos_token_id": 128001},
    ),
    heads="SmolLM3",
).family()
