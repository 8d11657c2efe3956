"""Maps the text model of Gemma 3, with logits or with the head of classification, to transformers."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from t5x_like.interop import fields
from t5x_like.interop.gemma2 import GEMMA2
from t5x_like.interop.rotary_decoders import BOTH_NORMS, Windows, every
from t5x_like.models.gemma import Gemma3Config


def layer_types(hf_config: Mapping[str, Any]) -> list[str]:
    """Returns the default of `layer_types`: the last of each `sliding_window_pattern` layers sees all tokens."""
    period = fields.size({"sliding_window_pattern": 6, **hf_config}, "sliding_window_pattern")
    return every(period, full=period - 1)(hf_config)


GEMMA3 = dataclasses.replace(
    GEMMA2,
    entries=dataclasses.replace(
        GEMMA2.entries,
        config_class=Gemma3Config,
        model="Gemma3Text",
        model_type="gemma3_text",
        keys=GEMMA2.entries.keys | {"vocab_size": ("vocab_size", 262208)},
        defaults=GEMMA2.entries.defaults
        | {"max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 10000.0},
        refused={"attn_logit_softcapping": None},  # transformers stores it without using it
        required={"attention_softcap": None},
        classes={(): "Gemma3ForCausalLM"},
    ),
    windows=Windows(default=4096, types=layer_types),
    local_theta="rope_local_base_freq",
    optional={"final_softcap": ("final_logit_softcapping", None)},
    tensors={"norms": BOTH_NORMS, "head_norms": True},
    heads="Gemma3Text",
    tags=False,
)
FAMILY = GEMMA3.family()
