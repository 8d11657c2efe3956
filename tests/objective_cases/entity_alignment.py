"""Objectives of models that read entities: denoising entity alignment with the others of ERNIE, and classification."""

import numpy as np
from objective_case import LABELS, LENGTH, ROWS, Case

from t5x_like.objectives.entity_alignment import EntityAlignment
from t5x_like.objectives.heads.entity_heads import PooledWithEntities
from t5x_like.objectives.masked_lm import MaskedLM
from t5x_like.objectives.next_sentence import NextSentence
from t5x_like.objectives.sequence_classification import SequenceClassification

_ENTITIES = 9


class EntityCase(Case):
    """A case whose model has a layer of each kind, and whose mentions have positions and vectors of their own."""

    def params(self, **changes):
        return super().params(num_layers=3, **changes)

    def batch(self):
        batch, rng = dict(super().batch()), np.random.default_rng(2)
        mentions = batch["entities"].shape[1]
        is_mention = batch["entity_positions"] > 0
        vectors = rng.normal(size=(_ENTITIES + 1, batch["entity_vectors"].shape[2])).astype(np.float32)
        entities = rng.integers(1, _ENTITIES + 1, is_mention.shape).astype(np.int32) * is_mention
        positions = np.argsort(rng.random((ROWS, LENGTH - 1)), axis=1)[:, :mentions].astype(np.int32) + 1
        batch |= {"entities": entities, "entity_positions": np.sort(positions) * is_mention}
        return batch | {"entity_vectors": vectors[entities] * is_mention[..., None]}


# The last layer's hidden states of entities are not read.
_WITHOUT_EFFECT = "key/bias|model/knowledge/layers/(0/)?(mlp/wo|mlp_norm)"
CASES = {
    "entity_alignment": EntityCase(
        EntityAlignment([MaskedLM(), NextSentence()], entity_dim=6), "ernie", without_effect=_WITHOUT_EFFECT
    ),
    "classification with entities": EntityCase(
        SequenceClassification(LABELS, head=PooledWithEntities(entity_dim=6)),
        "ernie",
        lambda rng: rng.integers(-1, 3, (ROWS, 1)),
        without_effect=_WITHOUT_EFFECT,
    ),
}
