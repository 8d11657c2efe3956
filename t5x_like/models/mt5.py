"""mT5 (Xue et al. 2021): T5 1.1 with a vocabulary of 101 languages."""

import dataclasses

from t5x_like.models.t5 import T5Config


@dataclasses.dataclass(frozen=True)
class MT5Config(T5Config):
    """Sizes and hyperparameters of mT5; by default mT5 small."""

    # Rows of the embedding table: 250,000 tokens, 100 sentinels, and padding.
    vocab_size: int = 250112
