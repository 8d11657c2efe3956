"""BART."""

import dataclasses

from family_case import ENCODER_DECODER, NO_DROPOUT, SIZES, WIDE_STACKS, Family

from t5x_like.models.bart import BartConfig

FAMILIES = {
    "bart": Family(
        dataclasses.replace(BartConfig(**SIZES, **ENCODER_DECODER, max_length=16), **NO_DROPOUT),
        ("encoder", "decoder"),
        flops_sizes=WIDE_STACKS | {"max_length": 96},
        huggingface_sizes={"head_dim": 6},
    ),
}

# Published checkpoints.
PARAMETERS = {
    "bart/base": 139_420_416,
    "bart/large": 406_291_456,
}
