"""GRU encoders. They have no attention, so the properties of Transformers do not apply to them."""

import dataclasses

from family_case import VOCABULARY

from t5x_like.models.gru import GRUConfig

FAMILIES = {}
_GRU = GRUConfig(vocab_size=VOCABULARY, embed_dim=12, embedding_dim=8)
SMALL = {
    "gru": _GRU,
    "bidirectional_gru": dataclasses.replace(_GRU, embed_dim=24, directions=("forward", "backward")),
}
PARAMETERS = {"skip_thoughts/uni": 82_171_200, "skip_thoughts/bi": 73_531_200, "skip_thoughts/tiny": 3_934_112}
