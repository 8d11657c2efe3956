"""BERT with shared layers."""

from family_case import NO_DROPOUT, SIZES, Family

from t5x_like.models.shared_layers import SharedLayersConfig

_SMALL = SharedLayersConfig(**SIZES, **NO_DROPOUT, num_heads=2, head_dim=6, num_layers=3, max_length=16)
FAMILIES = {"shared_layers": Family(_SMALL, ("encoder",), huggingface=False)}

# Without head: the embeddings and one layer of BERT base; those of BERT tiny.
PARAMETERS = {"shared_layers/base": 30_925_056, "shared_layers/tiny": 4_171_136}
