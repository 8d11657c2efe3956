"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108, section 2): BERT with half as many layers and without token types."""

import dataclasses

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from t5x_like.errors import UserError
from t5x_like.models.bert import Bert, BertConfig

# Base of the wavelengths of sinusoidal positions (Vaswani et al. 2017, section 3.5).
_MAX_WAVELENGTH = 10_000


@dataclasses.dataclass(frozen=True)
class DistilBertConfig(BertConfig):
    """Sizes and hyperparameters of DistilBERT; by default DistilBERT base, uncased."""

    # Number of layers.
    num_layers: int = 6
    # DistilBERT does not have token types.
    num_token_types: int = 0
    # Activations of the feed-forward blocks and of the masked-LM head.
    activations: tuple[str, ...] = ("gelu_exact",)
    # Whether the initial position table is sinusoidal. A parameter group for `position_embedder` freezes it.
    sinusoidal_positions: bool = False

    def __post_init__(self):
        super().__post_init__()
        for field in ("num_token_types", "position_offset"):
            if getattr(self, field):
                raise UserError(f"{field}={getattr(self, field)}: not supported by DistilBERT. Use BertConfig.")

    def make(self, key: jax.Array) -> Bert:
        """Returns a DistilBERT with newly initialized parameters; see `ModelConfig.make`."""
        model = Bert(self, key=key)
        if self.sinusoidal_positions:
            table = nnx.Param(
                jax.numpy.asarray(sinusoids(self.max_length, self.unembed_dim)), axes=("positions", "embed")
            )
            model.embeddings.position_embedder.embedding = table
        return model


def sinusoids(length: int, size: int) -> Float[np.ndarray, "length size"]:
    """Returns the sinusoidal position table in float32, sines in even columns and cosines in odd ones.

    Args:
      length: Number of positions.
      size: Size of the vectors.
    """
    angles = np.arange(length)[:, None] / _MAX_WAVELENGTH ** (2 * (np.arange(size) // 2) / size)
    return np.where(np.arange(size) % 2, np.cos(angles), np.sin(angles)).astype(np.float32)
