"""DistilBERT."""

from family_case import FSDP, NO_DROPOUT, SIZES, Family

from t5x_like.models.distilbert import DistilBertConfig
from t5x_like.objectives.masked_lm import MaskedLM

FAMILIES = {
    "distilbert": Family(
        DistilBertConfig(
            **SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=2, max_length=16, sinusoidal_positions=True
        ),
        ("encoder",),
        mesh=FSDP,
        pretraining=MaskedLM(),
    )
}

# Without head, with the masked-LM head: totals of transformers' DistilBertModel and DistilBertForMaskedLM.
DISTILBERT = {"distilbert/base": (66_362_880, 66_985_530)}
PARAMETERS = {name: counts[0] for name, counts in DISTILBERT.items()}
