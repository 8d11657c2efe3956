"""Maps Qwen 2 and 2.5, with logits or with the heads of classification, to transformers."""

from t5x_like.interop import fields
from t5x_like.interop.rotary_decoders import FULL, SLIDING, DecoderFiles, Windows, entries
from t5x_like.models.qwen import Qwen2Config


def layer_types(hf_config):
    """Returns the default of `layer_types`: the first `max_window_layers` layers see all tokens."""
    key = "max_window_layers"
    first = 0 if hf_config.get(key, 28) == 0 else fields.size({key: 28, **hf_config}, key)
    return [SLIDING if i >= first else FULL for i in range(fields.size(hf_config, "num_hidden_layers"))]


QWEN2 = DecoderFiles(
    entries=entries(
        Qwen2Config,
        "Qwen2",
        "qwen2",
        keys={
            "vocab_size": ("vocab_size", 151936),
            "embed_dim": ("hidden_size", 4096),
            "mlp_dim": ("intermediate_size", 22016),
            "num_heads": ("num_attention_heads", 32),
            "num_kv_heads": ("num_key_value_heads", 32),
            "num_layers": ("num_hidden_layers", 32),
        },
        defaults={"max_position_embeddings": 32768},
    ),
    windows=Windows(default=4096, types=layer_types, switch="use_sliding_window"),
    tensors={"biases": ("query", "key", "value")},
    heads="Qwen2",
)
FAMILY = QWEN2.family()
