"""(IA)³ (Liu et al. 2022, arXiv:2205.05638): vectors that rescale keys, values and feed-forward activations."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.layers.projections import Projection
from t5x_like.recorded import recorded


class Rescaling(nnx.Module):
    """Multiplies the outputs of a projection, bias included, or its inputs by a vector.

    Args:
      projection: The projection.
      of: What is multiplied.

    Attributes:
      scale: float32 `[*outputs]` or `[*inputs]`; initially 1.
    """

    def __init__(self, projection: Projection, of: Literal["outputs", "inputs"]):
        count = projection.num_inputs
        dimensions = slice(count, None) if of == "outputs" else slice(count)
        shape = projection.kernel.shape[dimensions]
        self.scale = nnx.Param(jnp.ones(shape, jnp.float32), axes=projection.axes[dimensions])
        self.of, self.num_outputs = of, len(projection.axes) - count

    def __call__(
        self, x: Float[Array, "batch length ..."], projection: Projection, *, dropout_key: jax.Array | None = None
    ) -> Float[Array, "batch length ..."]:
        """Returns the output of the projection with the rescaling; see `base.ProjectionAdapter`."""
        del dropout_key
        scale = self.scale[...]
        if self.of == "inputs":
            return projection.product(x * scale.astype(x.dtype))
        y = projection.product(x)
        return y * scale.astype(y.dtype)

    def merged(self, module: Projection) -> dict[str, Float[Array, "..."]]:
        """Returns the rescaled kernel and bias; see `base.AdapterModule`."""
        scale, kernel = self.scale[...], module.dense_kernel
        if self.of == "inputs":
            return {"kernel": kernel * scale.reshape(*scale.shape, *(1,) * self.num_outputs)}
        return {"kernel": kernel * scale} | ({"bias": module.bias[...] * scale} if module.has_bias else {})


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class IA3:
    """Rescales the outputs or inputs of some projections. Freeze all other parameters: `adapters/ia3.gin` does so.

    A comment above each field documents it.
    """

    target = Projection
    # Regular expression of the names of the projections, such as encoder/layers/attention/key.
    pattern: str = r"attention/(key|value)$"
    # `outputs` or `inputs`.
    of: Literal["outputs", "inputs"] = "outputs"

    def __post_init__(self):
        if self.of not in ("outputs", "inputs"):
            raise UserError(f"IA3.of={self.of!r}: neither 'outputs' nor 'inputs'. Give one of them.")

    def make(self, projection: Projection, key: jax.Array, name: str) -> Rescaling:
        """Makes the vector of a projection; see `base.Adapter`."""
        del key, name
        return Rescaling(projection, self.of)
