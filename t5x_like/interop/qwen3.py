"""Maps Qwen 3, with logits or with the heads of classification, to transformers."""

import dataclasses

from t5x_like.interop.qwen2 import QWEN2
from t5x_like.models.qwen import Qwen3Config

QWEN3 = dataclasses.replace(
    QWEN2,
    entries=dataclasses.replace(
        QWEN2.entries,
        config_class=Qwen3Config,
        model="Qwen3",
        model_type="qwen3",
        keys=QWEN2.entries.keys | {"head_dim": ("head_dim", 128)},
        fixed={"attention_bias": False},
        classes={(): "Qwen3ForCausalLM"},
    ),
    tensors={"head_norms": True},
    heads="Qwen3",
)
FAMILY = QWEN3.family()
