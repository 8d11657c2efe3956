"""XLNet."""

from family_case import NO_DROPOUT, SIZES, WIDE, Family

from t5x_like.models.xlnet import XLNetConfig
from t5x_like.objectives.permutation_lm import PermutationLM

FAMILIES = {
    "xlnet": Family(
        XLNetConfig(**SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=2, memory_length=3, reuse_length=2),
        ("encoder",),
        padding_id=5,
        flops_sizes=WIDE | {"num_layers": 3},
        pretraining=PermutationLM(),
    ),
}
XLNET = {
    "xlnet/tiny": (4_525_696, 4_557_696),
    "xlnet/base": (116_718_336, 116_750_336),
    "xlnet/large": (360_268_800, 360_300_800),
}
PARAMETERS = {name: counts[0] for name, counts in XLNET.items()}
