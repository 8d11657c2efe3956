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

# Without heads. Published: 100 to 900 million with the masked-LM head, of a rounded number of embeddings.
PARAMETERS = {
    "deberta/tiny": 0,
    "deberta/base": 138_601_728,
    "deberta/large": 405_163_008,
    "deberta_v2/xlarge": 884_593_152,
    "deberta_v2/xxlarge": 0,
    "deberta_v3/tiny": 0,
    "deberta_v3/xsmall": 0,
    "deberta_v3/small": 0,
    "deberta_v3/base": 183_831_552,
    "deberta_v3/large": 0,
}
