"""OLMo 2 and 3."""

from family_case import SIZES, WIDE, Family

from t5x_like.layers.rope_scaling import Yarn
from t5x_like.models.olmo import Olmo2Config, Olmo3Config

_TOKENS = {"pad_token_id": 1, "eos_token_id": 50279}
_SIZES = SIZES | dict(num_heads=4, num_kv_heads=2, head_dim=6, max_length=16)
_WIDE = WIDE | {"num_kv_heads": 2, "num_layers": 3, "max_length": 96}
FAMILIES = {
    "olmo2": Family(
        Olmo2Config(**_SIZES, num_layers=2),
        ("decoder",),
        mesh=("fsdp_tp", {"fsdp": 2, "tensor": 4}),
        flops_sizes=_WIDE,
        default_tokens=_TOKENS,
    ),
    "olmo3": Family(
        Olmo3Config(**_SIZES, num_layers=4, attention_windows=(3, 3, None), rope_scaling=Yarn(4.0, 4)),
        ("decoder",),
        flops_sizes=_WIDE | {"attention_windows": (None,)},
        default_tokens=_TOKENS,
    ),
}

# Published checkpoints.
PARAMETERS = {
    "olmo2/tiny": 1_607_256,
    "olmo2/1b": 1_484_916_736,
    "olmo2/7b": 7_298_617_344,
    "olmo2/13b": 13_716_198_400,
    "olmo2/32b": 32_234_279_936,
    "olmo3/tiny": 1_607_688,
    "olmo3/7b": 7_298_011_136,
    "olmo3/32b": 32_233_522_176,
}
