"""The encoder with disentangled attention."""

from family_case import NO_DROPOUT, SIZES, WIDE, Family

from t5x_like.models.disentangled import DisentangledConfig

FAMILIES = {
    "disentangled": Family(
        DisentangledConfig(
            **SIZES,
            **NO_DROPOUT,
            num_heads=2,
            head_dim=6,
            num_layers=2,
            max_length=16,
            max_distance=3,
            initializer_range=0.1,
        ),
        ("encoder",),
        flops_sizes=WIDE | {"num_layers": 3, "max_length": 96, "max_distance": 24},
        huggingface=False,
    )
}

# Without head.
PARAMETERS = {"disentangled/tiny": 4_401_920}
