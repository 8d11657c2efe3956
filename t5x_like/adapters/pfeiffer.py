"""Adapters of Pfeiffer et al. 2020 (AdapterFusion, arXiv:2005.00247): a small block at the end of each layer."""

import dataclasses
from collections.abc import Callable

import jax
from jaxtyping import Array, Float

from t5x_like.adapters.bottleneck import Bottleneck, BottleneckAdapter
from t5x_like.layers import initializers
from t5x_like.layers.blocks import TransformerLayer
from t5x_like.recorded import recorded


class LayerBottleneck(Bottleneck):
    """Adds a block to x, the residual sum of the last block of a layer.

    The block reads norm(x) in a post-norm layer, and x in other layers. A post-norm layer returns
    norm(x + up(activation(down(norm(x))))), with the same norm twice, as `seq_bn` of the library adapters does.
    """

    def __call__(
        self, x: Float[Array, "batch length embed"], norm: Callable[[Array], Array] | None
    ) -> Float[Array, "batch length embed"]:
        """Returns the sum with the block, before the norm.

        Args:
          x: The sum.
          norm: The norm that follows it, or None.
        """
        return x + self.update(x if norm is None else norm(x))

    def select(
        self,
        before: Float[Array, "batch length embed"],
        after: Float[Array, "batch length embed"],
        dropout_key: jax.Array | None,
    ) -> Float[Array, "batch length embed"]:
        """Returns the output of the layer, which has the block; see `blocks.TransformerLayer`."""
        del before, dropout_key
        return after


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class PfeifferAdapter(BottleneckAdapter):
    """A block in each layer, after its feed-forward block. `adapters/pfeiffer.gin` freezes all other parameters.

    A comment above each field documents it.
    """

    target = TransformerLayer
    # Regular expression of the names of the layers, such as encoder/layers.
    pattern: str = r"layers$"
    # Size of the bottleneck. The default is a sixteenth of 768, the width of base models.
    size: int = 48
    # Activation of the block.
    activation: str = "relu"
    # Standard deviation of the initial kernels, which are drawn from a normal distribution.
    initializer_range: float = 0.02

    def make(self, layer: TransformerLayer, key: jax.Array, name: str) -> LayerBottleneck:
        """Makes the block of a layer; see `base.Adapter`."""
        del name
        width, init = layer.last_norm.scale.shape[-1], initializers.normal(self.initializer_range)
        return LayerBottleneck(width, self.size, self.activation, axis="embed", init=init, key=key)
