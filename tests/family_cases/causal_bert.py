"""The left-to-right BERT."""

from family_case import NO_DROPOUT, SIZES, Family

from t5x_like.models.causal_bert import CausalBertConfig

FAMILIES = {
    "causal_bert": Family(
        CausalBertConfig(**SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=2, max_length=16),
        ("encoder",),
        causal=True,
        huggingface=False,
    )
}

# The parameters are those of BERT.
PARAMETERS: dict[str, int] = {}
