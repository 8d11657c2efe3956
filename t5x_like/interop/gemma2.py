"""Maps Gemma 2, with logits or with the heads of classification, to transformers."""

import dataclasses
from typing import Any

from t5x_like.interop.gemma import GEMMA
from t5x_like.interop.rotary_decoders import ACTIVATIONS, BOTH_NORMS, Windows, every
from t5x_like.models.gemma import Gemma2Config

# By default, transformers 4 computes attention without its cap, and does not say so.
WITH_SOFTCAP = {"_attn_implementation": "eager"}


def implied(config: Gemma2Config) -> dict[str, Any]:
    """Returns the keys of config.json that ask for attention with its cap, if there is one."""
    return {} if config.attention_softcap is None else dict(WITH_SOFTCAP)


GEMMA2 = dataclasses.replace(
    GEMMA,
    entries=dataclasses.replace(
        GEMMA.entries,
        config_class=Gemma2Config,
        model="Gemma2",
        model_type="gemma2",
        keys=GEMMA.entries.keys
        | {
            "embed_dim": ("hidden_size", 2304),
            "mlp_dim": ("intermediate_size", 9216),
            "num_heads": ("num_attention_heads", 8),
            "num_kv_heads": ("num_key_value_heads", 4),
            "num_layers": ("num_hidden_layers", 26),
            "query_scalar": ("query_pre_attn_scalar", 256),
        },
        defaults={key: value for key, value in GEMMA.entries.defaults.items() if key != "hidden_act"}
        | {"hidden_activation": "gelu_pytorch_tanh"},
        activations=ACTIVATIONS,
        activation_key="hidden_activation",
        required={},
        classes={(): "Gemma2ForCausalLM"},
    ),
    windows=Windows(default=4096, types=every(2, full=1)),
    optional={
        "attention_softcap": ("attn_logit_softcapping", 50.0),
        "final_softcap": ("final_logit_softcapping", 30.0),
    },
    implied=implied,
    tensors={"norms": BOTH_NORMS},
    heads="Gemma2",
)
FAMILY = GEMMA2.family()
