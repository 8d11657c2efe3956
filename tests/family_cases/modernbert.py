"""ModernBERT, the encoders of its shape (Ettin, mmBERT), and Ettin's decoders."""

from family_case import FSDP, SIZES, WIDE, Family

from t5x_like.models.modernbert import ModernBertConfig, ModernBertDecoderConfig
from t5x_like.objectives.masked_lm import MaskedLM

_TOKENS = {"bos_token_id": 50281, "eos_token_id": 50282, "cls_token_id": 50281, "sep_token_id": 50282}
_REFUSED = {"LAYERS": "not supported for ModernBert"}
_SIZES = SIZES | dict(num_heads=2, head_dim=6, num_layers=4, max_length=16)
# Windows as long as the rows: XLA also computes the scores outside of a window, which the formula omits.
_WIDE = WIDE | {"num_kv_heads": 4, "num_layers": 3, "max_length": 96, "attention_windows": (None,)}
FAMILIES = {
    # Four layers: the last repetition of the pattern is incomplete.
    "modernbert": Family(
        ModernBertConfig(**_SIZES, padding_id=0, attention_windows=(None, 3, 3)),
        ("encoder",),
        flops_sizes=_WIDE,
        pretraining=MaskedLM(),
        default_tokens={"pad_token_id": 0, **_TOKENS},
        refused=_REFUSED,
    ),
    "modernbert_decoder": Family(
        # transformers 4 rotates all layers by the base of those without a window.
        ModernBertDecoderConfig(**_SIZES, attention_windows=(None, 3, 3), rope_theta=100.0, local_rope_theta=100.0),
        ("decoder",),
        mesh=FSDP,
        flops_sizes=_WIDE,
        default_tokens={"pad_token_id": 39, **_TOKENS},
        refused=_REFUSED,
    ),
}

# Without head, with the masked-LM head (ModernBertForMaskedLM).
MODERNBERT = {
    "modernbert/tiny": (814_736, 865_376),
    "modernbert/base": (149_014_272, 149_655_232),
    "modernbert/large": (394_781_696, 395_881_664),
    "ettin/17m": (16_797_440, 16_913_600),
    "ettin/32m": (31_883_136, 32_081_344),
    "ettin/68m": (68_144_640, 68_457_664),
    "ettin/150m": (149_014_272, 149_655_232),
    "ettin/400m": (394_781_696, 395_881_664),
    "ettin/1b": (1_028_050_688, 1_031_314_112),
    "mmbert/small": (140_493_696, 140_897_536),
    "mmbert/base": (306_939_648, 307_786_240),
}
PARAMETERS = {name: counts[0] for name, counts in MODERNBERT.items()}
# The decoder of a size has as many parameters as the encoder with its head.
PARAMETERS |= {
    f"ettin_decoder/{size}": MODERNBERT[f"ettin/{size}"][1] for size in ("17m", "32m", "68m", "150m", "400m", "1b")
}
PARAMETERS |= {"ettin_decoder/tiny": 865_376}
