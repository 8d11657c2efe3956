"""Longformer."""

from family_case import NO_DROPOUT, SIZES, WIDE, Family

from t5x_like.models.longformer import FirstToken, LongformerConfig
from t5x_like.objectives.masked_lm import MaskedLM

FAMILIES = {
    "longformer": Family(
        LongformerConfig(
            **SIZES,
            **NO_DROPOUT,
            num_heads=2,
            head_dim=6,
            num_layers=2,
            max_length=16,
            window=3,
            global_tokens=FirstToken(),
            max_global_tokens=2,
        ),
        ("encoder",),
        padding_id=1,
        pretraining=MaskedLM(),
        huggingface_sizes={"global_tokens": None, "max_global_tokens": 64},  # not in config.json
        # A window as long as the rows: XLA also computes the scores outside of a window, which the formula omits.
        flops_sizes=WIDE | {"num_layers": 3, "max_length": 96, "window": 96},
    ),
}

# Without head, with the masked-LM head (LongformerForMaskedLM).
LONGFORMER = {
    "longformer/tiny": (7_454_464, 7_521_497),
    "longformer/base": (148_068_864, 148_711_257),
    "longformer/large": (433_551_360, 434_653_273),
}
PARAMETERS = {name: counts[0] for name, counts in LONGFORMER.items()}
