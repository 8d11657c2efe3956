"""LayerDrop (Fan et al. 2019, arXiv:1909.11556): layers are dropped at random in training."""

import dataclasses
import zlib

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.layers.blocks import TransformerLayer
from t5x_like.recorded import recorded

_STREAM = zlib.crc32(b"layer_drop")


class DroppedLayer(nnx.Module):
    """Replaces the output of a layer by its input, with some probability. Has no parameters.

    Args:
      rate: The probability.
    """

    def __init__(self, rate: float):
        self.rate = rate

    def __call__(self, x: Float[Array, "batch length embed"], norm: object) -> Float[Array, "batch length embed"]:
        """Returns the residual sum of the last block unchanged; see `blocks.TransformerLayer`."""
        del norm
        return x

    def select(
        self,
        before: Float[Array, "batch length embed"],
        after: Float[Array, "batch length embed"],
        dropout_key: jax.Array | None,
    ) -> Float[Array, "batch length embed"]:
        """Returns the input or the output of the layer, the same for all rows; see `blocks.TransformerLayer`."""
        if dropout_key is None:
            return after
        return jnp.where(jax.random.bernoulli(jax.random.fold_in(dropout_key, _STREAM), self.rate), before, after)

    def merged(self, module: TransformerLayer) -> dict[str, Float[Array, "..."]]:
        """Returns no parameters: without a dropout key, no layer is dropped; see `base.AdapterModule`."""
        del module
        return {}


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerDrop:
    """Drops layers in training, so that the trained model can be run with fewer of them.

    Each application of a layer is dropped or kept for a whole microbatch. A dropped layer is computed, so that training
    does not become faster, and its parameters have no gradient. Evaluation runs all layers.

    A comment above each field documents it.
    """

    target = TransformerLayer
    is_quantizable = True  # it has no parameters
    # Regular expression of the names of the layers, such as encoder/layers.
    pattern: str = r"layers$"
    # Probability that a layer is dropped. Published: 0.2 for pruning to half of the layers and less.
    rate: float = 0.2

    def __post_init__(self):
        if isinstance(self.rate, bool) or not 0 <= self.rate < 1:
            raise UserError(f"LayerDrop.rate={self.rate}: not in [0, 1). Give 0 for no dropped layers.")

    def make(self, layer: TransformerLayer, key: jax.Array, name: str) -> DroppedLayer:
        """Makes the module of a layer; see `base.Adapter`."""
        del layer, key, name
        return DroppedLayer(self.rate)
