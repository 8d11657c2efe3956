"""mT5, umT5 and ByT5."""

from family_case import ENCODER_DECODER, FSDP, SIZES, WIDE_STACKS, Family

from t5x_like.models.mt5 import MT5Config
from t5x_like.models.umt5 import UMT5Config

_SIZES = dict(**SIZES, **ENCODER_DECODER, relpos_buckets=8, relpos_max_distance=16)
FAMILIES = {
    name: Family(config(**_SIZES), ("encoder", "decoder"), mesh=FSDP, flops_sizes=WIDE_STACKS, initial_loss_margin=1.5)
    for name, config in (("mt5", MT5Config), ("umt5", UMT5Config))
}

# Totals of transformers' classes with the published sizes.
PARAMETERS = {
    "mt5/small": 300_176_768,
    "mt5/base": 582_401_280,
    "mt5/large": 1_229_581_312,
    "mt5/xl": 3_742_619_648,
    "mt5/xxl": 12_921_057_280,
    "umt5/small": 306_601_984,
    "umt5/base": 592_043_520,
    "umt5/xl": 3_768_356_864,
    "umt5/xxl": 12_972_531_712,
    "byt5/small": 299_637_760,
    "byt5/base": 581_653_248,
    "byt5/large": 1_228_183_552,
    "byt5/xl": 3_737_801_728,
    "byt5/xxl": 12_906_899_328,
}
