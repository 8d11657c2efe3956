"""The BERT of Cramming (Geiping and Goldstein 2022, arXiv:2212.14034): an encoder for one day of training on one GPU.

Sinusoidal positions, times a learned number, are added to the embeddings before their norm. Layers are pre-norm
without biases in projections, and their feed-forward blocks are gated. A norm follows the last layer; then come the
logits, tied to the embeddings, without a further layer or bias.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_like.errors import UserError
from t5x_like.kernels.dropout import Dropout, split_key
from t5x_like.layers import captures as capturing
from t5x_like.layers import initializers
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.embeddings import position_ids
from t5x_like.layers.norms import LayerNorm
from t5x_like.models import checks
from t5x_like.models.base import Batch, PredictionHead
from t5x_like.models.distilbert import sinusoids
from t5x_like.models.outputs import Outputs
from t5x_like.models.rotary_encoder import RotaryEncoder, RotaryEncoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrammedBertConfig(RotaryEncoderConfig):
    """Sizes and hyperparameters of the crammed BERT; by default those of the published recipe."""

    # Rows of the embedding table; token ids are smaller.
    vocab_size: int = 32768
    # Size of a hidden state.
    embed_dim: int = 768
    # Size within a feed-forward block, after gating.
    mlp_dim: int = 1536
    # Number of attention heads.
    num_heads: int = 12
    # Size of the queries, keys and values of a head.
    head_dim: int = 64
    # Number of layers.
    num_layers: int = 16
    # Longest row, in tokens.
    max_length: int = 128
    # Activations of the feed-forward blocks; with two, their product.
    activations: tuple[str, ...] = ("gelu_exact", "linear")
    # Whether the logits use the token embeddings as their kernel.
    tied_embeddings: bool = True
    # Epsilon of the norms.
    norm_epsilon: float = 1e-12
    # Standard deviation of new kernels and tables.
    initializer_range: float = 0.02

    def __post_init__(self):
        super().__post_init__()
        checks.positive(self, "initializer_range")
        for field in dataclasses.fields(RotaryEncoderConfig):
            if field.name.startswith("rope_") and (value := getattr(self, field.name)) != field.default:
                raise UserError(
                    f"CrammedBertConfig.{field.name}={value!r}: not supported, since positions are sinusoidal. Omit it."
                )

    @property
    def initializer(self) -> initializers.Initializer:
        """Initializer of kernels and tables."""
        return initializers.normal(self.initializer_range)

    @property
    def prediction_head(self) -> PredictionHead:
        """Parts of the masked-LM head: none."""
        return PredictionHead(transform=False, output_bias=False)

    def make_norm(self) -> LayerNorm:
        """Makes the norm of the embeddings, of a block or of the stack."""
        return LayerNorm(self.embed_dim, epsilon=self.norm_epsilon)

    def rotary(self, window: int | None) -> None:
        """Returns None: nothing is rotated."""
        return None

    def make(self, key: jax.Array) -> RotaryEncoder:
        """Returns a model with newly initialized parameters; see `ModelConfig.make`."""
        return CrammedBert(self, key=key)


class CrammedBert(RotaryEncoder):
    """The crammed BERT. Implements `Model` of `models/base.py`; see `RotaryEncoder`.

    Attributes:
      position_factor: float32 `[1]`, factor of the sinusoids, initially embed_dim^-1/2 (Hua et al. 2022,
        arXiv:2202.10447).
      embedding_norm: Norm of the sum of the embeddings and the positions.
    """

    def __init__(self, config: CrammedBertConfig, *, key: jax.Array):
        super().__init__(config, key=key)
        self.position_factor = nnx.Param(jnp.full((1,), config.embed_dim**-0.5, jnp.float32), axes=(None,))
        self.embedding_norm = config.make_norm()

    def embed(self, batch: Batch) -> dict[str, Hidden]:
        """Returns the normalized sum of token embeddings and positions as `encoder`; see `RotaryEncoder.embed`."""
        embedded = super().embed(batch)["encoder"]
        positions = position_ids(*embedded.shape[:2], batch.get("encoder_positions"))
        table = jnp.asarray(sinusoids(self.config.max_length, self.config.embed_dim))
        added = (self.position_factor[...] * table[positions]).astype(embedded.dtype)
        return {"encoder": self.embedding_norm(embedded + added)}

    def trunk(
        self,
        embedded: Mapping[str, Hidden],
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
        capture: Sequence[str] = (),
        edits: Sequence[capturing.Edit] = (),
    ) -> Outputs:
        """Computes everything between the embeddings and the logits, with dropout of the embeddings; see `Model`."""
        first_key, layers_key = split_key(dropout_key, 2)
        x = Dropout(self.config.dropout_rate)(embedded["encoder"], first_key)
        return super().trunk({"encoder": x}, batch, dropout_key=layers_key, capture=capture, edits=edits)
