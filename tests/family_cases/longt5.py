"""LongT5 and mLongT5."""

from family_case import ENCODER_DECODER, FSDP, SIZES, WIDE_STACKS, Family

from t5x_like.models.longt5 import LongT5Config

_SIZES = dict(**SIZES, **ENCODER_DECODER, relpos_buckets=8, relpos_max_distance=16, local_radius=3)
# Windows as long as the rows: XLA also computes the scores outside of a window, which the formula omits.
_WIDE = WIDE_STACKS | {"local_radius": 96}
FAMILIES = {
    name: Family(
        LongT5Config(**_SIZES, global_block_size=size),
        ("encoder", "decoder"),
        mesh=FSDP,
        flops_sizes=_WIDE,
        initial_loss_margin=1.5,
    )
    for name, size in (("longt5", 4), ("longt5_local", None))
}

PARAMETERS = {
    "longt5/base": 247_587_456,
    "longt5/large": 783_175_168,
    "longt5/xl": 2_849_807_360,
    "mlongt5/base": 592_044_672,
    "mlongt5/large": 1_242_451_456,
    "mlongt5/xl": 3_768_359_936,
}
