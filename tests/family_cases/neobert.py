"""NeoBERT."""

from family_case import SIZES, WIDE, Family

from t5x_like.models.neobert import NeoBertConfig
from t5x_like.objectives.masked_lm import MaskedLM

_SIZES = dict(mlp_dim=24, num_heads=2, head_dim=6, num_layers=2, max_length=16)
FAMILIES = {
    "neobert": Family(
        NeoBertConfig(**SIZES | _SIZES),
        ("encoder",),
        flops_sizes=WIDE | {"num_kv_heads": 4, "num_layers": 3, "max_length": 96},
        pretraining=MaskedLM(),
        default_tokens={"pad_token_id": 0},
    ),
}

# With the kernel of the logits; the bias of the masked-LM head has 30,522 more (NeoBERTLMHead: 245,136,954).
PARAMETERS = {"neobert/tiny": 981_136, "neobert/base": 245_136_954 - 30_522}
