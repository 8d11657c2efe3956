"""BigBird ITC. Rows of up to 14 tokens have dense attention in the small configuration."""

from family_case import NO_DROPOUT, SIZES, WIDE, Family

from t5x_like.models.bigbird import BigBirdConfig
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

_SMALL = dict(**SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=2, max_length=16)
FAMILIES = {
    "bigbird": Family(
        BigBirdConfig(**_SMALL, block_size=2, num_random_blocks=1),
        ("encoder",),
        pretraining=Joint([MaskedLM(), NextSentence()]),
        # XLA also computes the products of invisible blocks, which the formula does not count.
        flops_sizes=WIDE | {"num_layers": 3, "max_length": 96, "block_size": 32},
    )
}

# Without heads, with the pooler, with the heads of masked language modeling and next-sentence prediction.
BIGBIRD = {
    "bigbird/tiny": (7_367_168, 7_383_680, 7_451_064),
    "bigbird/base": (126_878_208, 127_468_800, 128_112_824),
    "bigbird/large": (358_074_368, 359_123_968, 360_228_024),
}
PARAMETERS = {name: counts[0] for name, counts in BIGBIRD.items()}
