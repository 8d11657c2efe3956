"""UniLM."""

from family_case import FSDP, NO_DROPOUT, SIZES, Family

from t5x_like.models.unilm import UnilmConfig

FAMILIES = {
    "unilm": Family(
        UnilmConfig(**SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=2, max_length=16),
        ("encoder",),
        mesh=FSDP,
        huggingface=False,
    )
}

# Without heads, with the pooler, with both heads of pretraining.
UNILM = {
    "unilm/tiny": (4_174_592, 4_191_104, 4_237_126),
    "unilm/base": (107_722_752, 108_313_344, 108_936_006),
    "unilm/large": (332_533_760, 333_583_360, 334_666_054),
}
PARAMETERS = {name: counts[0] for name, counts in UNILM.items()}
