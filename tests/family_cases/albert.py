"""ALBERT."""

from family_case import NO_DROPOUT, SIZES, Family

from t5x_like.models.albert import AlbertConfig
from t5x_like.objectives.joint import Joint
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.sentence_order import SentenceOrder

# Embeddings have the size of hidden states, so that `unembed` reads hidden states as in all families.
_SMALL = AlbertConfig(**SIZES, **NO_DROPOUT, embedding_dim=None, num_heads=2, head_dim=6, num_layers=3, max_length=16)
FAMILIES = {
    "albert": Family(
        _SMALL,
        ("encoder",),
        pretraining=Joint([MaskedLM(), SentenceOrder()]),
        huggingface_sizes={"embedding_dim": 8, "stored_layers": 3},
    )
}

# Without heads, with the pooler, with both heads of pretraining.
ALBERT = {
    "albert/tiny": (1_179_008, 1_195_520, 1_229_970),
    "albert/base": (11_092_992, 11_683_584, 11_813_810),
    "albert/large": (16_634_368, 17_683_968, 17_847_474),
    "albert/xlarge": (54_528_512, 58_724_864, 59_021_490),
    "albert/xxlarge": (205_814_272, 222_595_584, 223_158_450),
}
PARAMETERS = {name: counts[0] for name, counts in ALBERT.items()}
