"""MobileBERT, MobileBERT-TINY, the model of the paper's table 1, and IB-BERT."""

from family_case import FSDP, NO_DROPOUT, SIZES, WIDE, Family

from t5x_like.models.mobilebert import MobileBertConfig
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

_SMALL = SIZES | NO_DROPOUT | dict(num_heads=2, num_layers=2, max_length=16, embedding_dim=8)
# In the test of FLOPs, the masked-LM head does not own a part of the logits.
_WIDE = WIDE | {"num_layers": 3, "max_length": 96, "embedding_dim": 128, "bottleneck_dim": 128}
_PRETRAINING = Joint([MaskedLM(), NextSentence()])
FAMILIES = {
    "mobilebert": Family(
        MobileBertConfig(**_SMALL, bottleneck_dim=8, head_dim=4, num_mlps=2),
        ("encoder",),
        flops_sizes=_WIDE,
        pretraining=_PRETRAINING,
    ),
    "mobilebert_tiny": Family(
        MobileBertConfig(**_SMALL, bottleneck_dim=8, head_dim=4, num_mlps=2, attention_input="bottleneck"),
        ("encoder",),
        mesh=FSDP,
        flops_sizes=_WIDE,
        pretraining=_PRETRAINING,
    ),
    "ib_bert": Family(
        MobileBertConfig(
            **_SMALL,
            bottleneck_dim=16,
            head_dim=8,
            num_mlps=1,
            attention_input="hidden",
            normalization="layer_norm",
            activations=("gelu",),
        ),
        ("encoder",),
        flops_sizes=_WIDE,
        huggingface=False,
    ),
}

# Without heads, and with both pretraining heads, whose next-sentence head has no pooler.
MOBILEBERT = {
    "mobilebert/base": (24_581_888, 36_597_564),
    "mobilebert/tiny": (15_485_696, 27_501_372),
    "mobilebert/paper": (25_359_104, 37_374_780),
    "mobilebert/ib_bert": (294_205_184, 306_220_860),
}
PARAMETERS = {name: counts[0] for name, counts in MOBILEBERT.items()}
