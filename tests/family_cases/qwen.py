"""Qwen 2.5 and 3."""

from family_case import SIZES, WIDE, Family

from t5x_like.models.qwen import Qwen2Config, Qwen3Config

_SIZES = SIZES | dict(num_heads=4, num_kv_heads=2, head_dim=6, num_layers=2, max_length=16)
_WIDE = WIDE | {"num_kv_heads": 2, "num_layers": 3, "max_length": 96}
FAMILIES = {
    "qwen2": Family(Qwen2Config(**_SIZES), ("decoder",), flops_sizes=_WIDE),
    "qwen3": Family(
        Qwen3Config(**_SIZES, tied_embeddings=True),
        ("decoder",),
        mesh=("fsdp_tp", {"fsdp": 2, "tensor": 4}),
        flops_sizes=_WIDE,
    ),
}

# Published checkpoints.
PARAMETERS = {
    "qwen2_5/tiny": 2_434_664,
    "qwen2_5/0_5b": 494_032_768,
    "qwen2_5/1_5b": 1_543_714_304,
    "qwen2_5/3b": 3_085_938_688,
    "qwen2_5/7b": 7_615_616_512,
    "qwen2_5/14b": 14_770_033_664,
    "qwen2_5/32b": 32_763_876_352,
    "qwen2_5/72b": 72_706_203_648,
    "qwen3/tiny": 2_432_568,
    "qwen3/0_6b": 596_049_920,
    "qwen3/1_7b": 1_720_574_976,
    "qwen3/4b": 4_022_468_096,
    "qwen3/8b": 8_190_735_360,
    "qwen3/14b": 14_768_307_200,
    "qwen3/32b": 32_762_123_264,
}
