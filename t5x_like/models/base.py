"""The fields that the configurations of all models share."""

import dataclasses

from t5x_like.models import checks
from t5x_like.models.special_tokens import SpecialTokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseConfig:
    """The fields that every family's configuration has. A family sets a default of `vocab_size`.

    A comment above each field documents it, here and in the families.
    """

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int
    # Special token ids of imported weights. They are written again on export and not used otherwise.
    special_tokens: SpecialTokens | None = None
    # What the backward pass recomputes, a key of `layers.stacks.REMAT_POLICIES`: 'none' (keep everything), 'dots' (keep
    # the results of projections) or 'full' (recompute whole layers).
    remat: str = "none"
    # Dtype of activations: 'bfloat16' or 'float32'. None: `partitioning.for_platform` sets it, and without it float32
    # is used. Parameters are always float32.
    dtype: str | None = None
    # Whether layers are stacked and scanned. None: `partitioning.for_platform` sets it, and without it layers are
    # unrolled.
    scan_layers: bool | None = None

    def __post_init__(self):
        checks.positive_integers(self, "vocab_size")
        checks.remat_and_dtype(self)

    @property
    def compute_dtype(self) -> str:
        """Dtype of activations."""
        return self.dtype or "float32"
