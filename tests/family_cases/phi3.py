"""Phi 3 mini."""

from family_case import SIZES, WIDE, Family

from t5x_like.models.phi3 import Phi3Config

FAMILIES = {
    "phi3": Family(
        Phi3Config(**SIZES, num_heads=2, head_dim=6, num_layers=2, max_length=16, attention_windows=(3,)),
        ("decoder",),
        default_tokens={"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 32000},
        flops_sizes=WIDE | {"num_kv_heads": 4, "num_layers": 3, "max_length": 96, "attention_windows": (None,)},
    ),
}

# Published checkpoints.
PARAMETERS = {"phi3/tiny": 514_856, "phi3/mini": 3_821_079_552}
