"""ELECTRA. `objectives/replaced_tokens` trains it; the heads of downstream tasks are in test_head_classes.py."""

from family_case import NO_DROPOUT, SIZES, Family

from t5x_like.models.electra import ElectraConfig
from t5x_like.objectives.masked_lm import MaskedLM

FAMILIES = {
    "electra": Family(
        ElectraConfig(**SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=2, max_length=16),
        ("encoder",),
        pretraining=MaskedLM(),
        other_heads=("replaced_tokens",),
        huggingface_sizes={"embedding_dim": 8},
    )
}

# Without head, with the head of replaced tokens, and the generator of the published run with its head, before sharing.
ELECTRA = {
    "electra/tiny": (1_393_984, 1_410_625, 1_127_962),
    "electra/small": (13_483_008, 13_549_057, 4_620_026),
    "electra/base": (108_891_648, 109_483_009, 33_740_602),
    "electra/large": (334_092_288, 335_142_913, 51_295_290),
}
PARAMETERS = {name: counts[0] for name, counts in ELECTRA.items()}
