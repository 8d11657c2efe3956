"""Encoders for small budgets: MosaicBERT, the crammed BERT, LTG-BERT and GPT-BERT."""

from family_case import NO_DROPOUT, SIZES, WIDE, Family

from t5x_like.models.cramming import CrammedBertConfig
from t5x_like.models.gptbert import GptBertConfig
from t5x_like.models.ltgbert import LtgBertConfig
from t5x_like.models.mosaicbert import MosaicBertConfig
from t5x_like.objectives.masked_lm import MaskedLM

_SMALL = dict(**SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=2, max_length=16)
_BUCKETS = dict(max_distance=6, position_buckets=4)
_WIDE = WIDE | {"num_layers": 3, "max_length": 96}
_WIDE_BUCKETS = _WIDE | {"max_distance": 24, "position_buckets": 16}
_COMMON = dict(huggingface=False, pretraining=MaskedLM())
FAMILIES = {
    "mosaicbert": Family(MosaicBertConfig(**_SMALL), ("encoder",), flops_sizes=_WIDE, **_COMMON),
    "crammed_bert": Family(
        CrammedBertConfig(**_SMALL), ("encoder",), flops_sizes=_WIDE | {"num_kv_heads": 4}, **_COMMON
    ),
    "gptbert": Family(
        GptBertConfig(**_SMALL, **_BUCKETS),
        ("encoder",),
        flops_sizes=_WIDE_BUCKETS,
        refused={"LAYERS": "not supported for GptBert"},
        **_COMMON,
    ),
    "ltgbert": Family(LtgBertConfig(**_SMALL, **_BUCKETS), ("encoder",), flops_sizes=_WIDE_BUCKETS, **_COMMON),
}

# Without head, with the masked-LM head: those of the released code for LTG-BERT and GPT-BERT.
SMALL_BUDGETS = {
    "mosaicbert/tiny": (493_152, 523_984),
    "mosaicbert/base": (136_777_728, 137_400_384),
    "cramming/tiny": (528_833, 528_833),
    "cramming/base": (119_589_889, 119_589_889),
    "ltgbert/tiny": (267_728, 284_384),
    "ltgbert/xs": (8_480_448, 8_533_888),
    "ltgbert/small": (27_577_728, 27_741_952),
    "ltgbert/base": (97_622_784, 98_229_760),
    "gptbert/tiny": (137_150, 145_614),
    "gptbert/small": (29_736_132, 29_892_164),
    "gptbert/base": (118_847_556, 119_454_532),
}
PARAMETERS = {name: counts[0] for name, counts in SMALL_BUDGETS.items()}
