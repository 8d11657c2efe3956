"""Gemma 1, 2 and 3."""

from family_case import FSDP, SIZES, WIDE, Family

from t5x_like.models.gemma import Gemma2Config, Gemma3Config, GemmaConfig

_TOKENS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
_SIZES = SIZES | dict(num_heads=4, num_kv_heads=2, head_dim=6, max_length=16)
# Windows as long as the rows: XLA also computes the scores outside of a window, which the formula omits.
_WIDE = WIDE | {"num_kv_heads": 2, "num_layers": 3, "max_length": 96, "attention_windows": (None,)}
FAMILIES = {
    "gemma1": Family(GemmaConfig(**_SIZES, num_layers=2), ("decoder",), flops_sizes=_WIDE, default_tokens=_TOKENS),
    "gemma2": Family(
        # The limits are near the scores and logits of the tests.
        Gemma2Config(
            **_SIZES,
            num_layers=3,
            attention_windows=(3, None),
            attention_softcap=2.0,
            final_softcap=5.0,
            query_scalar=3,
        ),
        ("decoder",),
        mesh=FSDP,
        flops_sizes=_WIDE,
        default_tokens=_TOKENS,
    ),
    # Five layers: the last repetition of the pattern is incomplete.
    "gemma3": Family(
        Gemma3Config(**_SIZES, num_layers=5, attention_windows=(3, 3, None), query_scalar=3),
        ("decoder",),
        mesh=("fsdp_tp", {"fsdp": 2, "tensor": 4}),
        flops_sizes=_WIDE,
        default_tokens=_TOKENS,
    ),
}

# Published checkpoints; of Gemma 3 from 4B on, the text model.
PARAMETERS = {
    "gemma1/tiny": 2_049_576,
    "gemma1/2b": 2_506_172_416,
    "gemma1/7b": 8_537_680_896,
    "gemma2/tiny": 2_049_608,
    "gemma2/2b": 2_614_341_888,
    "gemma2/9b": 9_241_705_984,
    "gemma2/27b": 27_227_128_320,
    "gemma3/tiny": 2_100_096,
    "gemma3/270m": 268_098_176,
    "gemma3/1b": 999_885_952,
    "gemma3/4b": 3_880_263_168,
    "gemma3/12b": 11_766_034_176,
    "gemma3/27b": 27_009_346_304,
}
