"""The form of a head of models that read entities, such as ERNIE; see `objectives.heads`."""

import dataclasses

from t5x_like.data import specs
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.objectives.heads import PooledFirstToken


@dataclasses.dataclass(frozen=True, kw_only=True)
class PooledWithEntities(PooledFirstToken):
    """BERT's head, of a model that also reads the entities of the text (Zhang et al. 2019, section 3.5)."""

    # Size of the vectors of entities.
    entity_dim: int = 100

    def __post_init__(self):
        super().__post_init__()
        if self.entity_dim < 1:
            raise UserError(f"PooledWithEntities.entity_dim={self.entity_dim}: must be a positive integer")

    @property
    def inputs(self) -> FeatureSpec:
        """The features that the model reads."""
        return specs.with_entities(specs.ENCODER_INPUTS_WITH_TYPES, self.entity_dim)
