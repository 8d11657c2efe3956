"""BERT and RoBERTa."""

import dataclasses

from family_case import FSDP, NO_DROPOUT, SIZES, Family

from t5x_like.models.bert import BertConfig
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence

_BERT = BertConfig(**SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=2, max_length=16)
FAMILIES = {
    "bert": Family(_BERT, ("encoder",), pretraining=Joint([MaskedLM(), NextSentence()])),
    "roberta": Family(
        dataclasses.replace(
            _BERT, position_offset=2, num_token_types=1, padding_id=1, activations=("gelu_exact",), norm_epsilon=1e-5
        ),
        ("encoder",),
        mesh=FSDP,
        padding_id=1,
        pretraining=MaskedLM(),
    ),
}

# Without heads, with the pooler, with both pretraining heads: totals of transformers' BertModel without and with its
# pooler, and of BertForPreTraining. Turc et al. (2019) published the second number of the compact models.
BERT = {
    "bert/tiny": (4_369_408, 4_385_920, 4_433_468),
    "bert/mini": (11_104_768, 11_170_560, 11_267_900),
    "bert/small": (28_500_992, 28_763_648, 29_058_876),
    "bert/medium": (41_110_528, 41_373_184, 41_668_412),
    "bert/base": (108_891_648, 109_482_240, 110_106_428),
    "bert/large": (334_092_288, 335_141_888, 336_226_108),
    "bert/base_cased": (107_719_680, 108_310_272, 108_932_934),
    "bert/large_cased": (332_529_664, 333_579_264, 334_661_958),
}
# Students of BERT (PKD, TinyBERT, MiniLM), and the default of the compact models of Turc et al.
BERT |= {
    "bert/6_layers": (66_364_416, 66_955_008, 67_579_196),
    "bert/4_layers": (52_188_672, 52_779_264, 53_403_452),
    "bert/3_layers": (45_100_800, 45_691_392, 46_315_580),
    "bert/tinybert_4": (14_252_592, 14_350_248, 14_479_676),
    "bert/minilm_6": (22_565_376, 22_713_216, 22_893_116),
    "bert/minilm_12": (33_212_160, 33_360_000, 33_539_900),
    "bert/compact": (28_500_992, 28_763_648, 29_058_876),
}
# Layers -> parameters with the pooler for 128, 256, 512 and 768 dimensions: the 24 sizes of Turc et al. (2019).
COMPACT = {
    2: (4_385_920, 9_591_040, 22_458_880, 38_603_520),
    4: (4_782_464, 11_170_560, 28_763_648, 52_779_264),
    6: (5_179_008, 12_750_080, 35_068_416, 66_955_008),
    8: (5_575_552, 14_329_600, 41_373_184, 81_130_752),
    10: (5_972_096, 15_909_120, 47_677_952, 95_306_496),
    12: (6_368_640, 17_488_640, 53_982_720, 109_482_240),
}
# Without head, with the masked-LM head (RobertaForMaskedLM).
ROBERTA = {
    "roberta/base": (124_055_040, 124_697_433),
    "roberta/large": (354_310_144, 355_412_057),
    "roberta/distil": (81_527_808, 82_170_201),
}
PARAMETERS = {name: counts[0] for name, counts in (BERT | ROBERTA).items()}
