"""ERNIE."""

from family_case import FSDP, NO_DROPOUT, SIZES, WIDE, Family

from t5x_like.models.ernie import ErnieConfig

ENTITIES = dict(entity_dim=6, entity_heads=2, knowledge_layers=2)
FAMILIES = {
    "ernie": Family(
        ErnieConfig(**SIZES, **NO_DROPOUT, **ENTITIES, num_heads=2, head_dim=6, num_layers=3, max_length=16),
        ("encoder",),
        mesh=FSDP,
        flops_sizes=WIDE | {"num_layers": 3, "max_length": 96, "entity_dim": 64},
        huggingface=False,
    )
}

# Without heads, with the pooler, with all heads of pretraining.
ERNIE = {
    "ernie/tiny": (4_814_704, 4_831_216, 4_891_864),
    "ernie/base": (113_459_652, 114_050_244, 114_751_532),
}
PARAMETERS = {name: counts[0] for name, counts in ERNIE.items()}
