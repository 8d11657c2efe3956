"""SmolLM 2, which is a Llama, and SmolLM 3."""

from family_case import SIZES, WIDE, Family

from t5x_like.models.smollm3 import SmolLM3Config

FAMILIES = {
    "smollm3": Family(
        SmolLM3Config(
            **SIZES, num_heads=4, num_kv_heads=2, head_dim=6, num_layers=3, max_length=16, rotated=(True, False)
        ),
        ("decoder",),
        flops_sizes=WIDE | {"num_kv_heads": 2, "num_layers": 3, "max_length": 96},
        default_tokens={"pad_token_id": None, "bos_token_id": 128000, "eos_token_id": 128001},
    ),
}

# Published checkpoints.
PARAMETERS = {
    "smollm2/135m": 134_515_008,
    "smollm2/360m": 361_821_120,
    "smollm2/1_7b": 1_711_376_384,
    "smollm3/tiny": 1_029_192,
    "smollm3/3b": 3_075_098_624,
}
