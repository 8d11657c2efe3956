"""DeBERTa v1, v2 and v3."""

from family_case import NO_DROPOUT, SIZES, WIDE, Family

from t5x_like.models.deberta import DebertaConfig
from t5x_like.models.deberta_v2 import DebertaV2Config
from t5x_like.objectives.masked_lm import MaskedLM

_SMALL = dict(**SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=2, max_length=16)
_WIDE = WIDE | {"num_layers": 3, "max_length": 96, "max_distance": 24}
FAMILIES = {
    "deberta": Family(
        DebertaConfig(**_SMALL, max_distance=3),
        ("encoder",),
        pretraining=MaskedLM(),
        other_heads=("masked_lm/position_embedder",),
        flops_sizes=_WIDE,
    ),
    "deberta_v2": Family(
        DebertaV2Config(**_SMALL, max_distance=6, position_buckets=4, conv_size=3),
        ("encoder",),
        pretraining=MaskedLM(),
        other_heads=("masked_lm/position_embedder", "replaced_tokens"),
        flops_sizes=_WIDE | {"position_buckets": 16},
    ),
}

# Without heads, with the masked-LM head and its positions.
DEBERTA = {
    "deberta/tiny": (7_027_328, 7_159_897),
    "deberta/base": (138_601_728, 139_637_337),
    "deberta/large": (405_163_008, 406_789_209),
    "deberta/xlarge": (757_804_032, 759_430_233),
    "deberta_v2/xlarge": (884_593_152, 887_871_588),
    "deberta_v2/xxlarge": (1_564_549_632, 1_567_828_068),
}
# Without head, with the head of replaced tokens, and the generator with its head, with embeddings of its own.
DEBERTA_V3 = {
    "deberta_v3/tiny": (17_255_936, 17_272_833, 17_069_796),
    "deberta_v3/xsmall": (70_682_112, 70_831_105, 60_508_644),
    "deberta_v3/small": (141_304_320, 141_897_217, 121_154_148),
    "deberta_v3/base": (183_831_552, 184_424_449, 142_417_764),
    "deberta_v3/large": (434_012_160, 435_064_833, 284_561_508),
}
PARAMETERS = {name: counts[0] for name, counts in (DEBERTA | DEBERTA_V3).items()}
