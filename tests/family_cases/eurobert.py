"""EuroBERT."""

from family_case import SIZES, WIDE, Family

from t5x_like.models.eurobert import EuroBertConfig
from t5x_like.objectives.masked_lm import MaskedLM

FAMILIES = {
    "eurobert": Family(
        EuroBertConfig(**SIZES, num_heads=4, num_kv_heads=2, head_dim=6, num_layers=2, max_length=16, padding_id=1),
        ("encoder",),
        padding_id=1,
        flops_sizes=WIDE | {"num_kv_heads": 2, "num_layers": 3, "max_length": 96},
        pretraining=MaskedLM(),
        default_tokens={
            "pad_token_id": 1,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
            "mask_token_id": 128002,
        },
    ),
}

# With the kernel of the logits (EuroBertForMaskedLM).
PARAMETERS = {
    "eurobert/tiny": 4_108_112,
    "eurobert/210m": 310_266_624,
    "eurobert/610m": 755_625_600,
    "eurobert/2_1b": 2_403_092_736,
}
