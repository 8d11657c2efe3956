"""DoRA (Liu et al. 2024, arXiv:2402.09353): low-rank updates of the directions of kernels, and their magnitudes."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.adapters.lora import LoRA, LowRank
from t5x_like.layers.projections import Projection
from t5x_like.recorded import recorded


class WeightDecomposed(LowRank):
    """Replaces a kernel W by m (W + scale · A B) / ‖W + scale · A B‖, with a norm for each output.

    The norm of the updated kernel has no gradient, as in section 4.3 of the paper. m is the norm of the kernel, which
    must be frozen, plus a trained change, so that a new module changes nothing whatever weights are loaded.

    Args:
      projection: The projection.
      key: Random key for the initial values.
      **settings: See `LowRank`.

    Attributes:
      magnitude_change: m - ‖W‖, float32 `[*outputs]`; initially 0.
    """

    def __init__(self, projection: Projection, *, key: jax.Array, **settings):
        super().__init__(projection, **settings, key=key)
        shape, axes = projection.kernel.shape[self.num_inputs :], projection.axes[self.num_inputs :]
        self.magnitude_change = nnx.Param(jnp.zeros(shape, jnp.float32), axes=axes)

    def __call__(
        self, x: Float[Array, "batch length ..."], projection: Projection, *, dropout_key: jax.Array | None = None
    ) -> Float[Array, "batch length ..."]:
        """Returns the output of the projection with the kernel replaced; see `base.ProjectionAdapter`.

        Dropout applies to the input of the update alone.
        """
        y = projection.product(x)
        bias = projection.bias[...].astype(y.dtype) if projection.has_bias else 0
        factor = self._factor(projection.dense_kernel).astype(y.dtype)
        return factor * (y - bias + self.update(x, y.dtype, dropout_key)) + bias

    def merged(self, module: Projection) -> dict[str, Float[Array, "..."]]:
        """Returns the kernel with the update and the magnitudes; see `base.AdapterModule`."""
        kernel = module.dense_kernel
        return {"kernel": self._factor(kernel) * (kernel + self.delta())}

    def _factor(self, kernel: Float[Array, "..."]) -> Float[Array, "..."]:
        updated = kernel.astype(jnp.float32) + self.delta()
        magnitude = _norms(kernel, self.num_inputs) + self.magnitude_change[...]
        return magnitude / jax.lax.stop_gradient(_norms(updated, self.num_inputs))


def _norms(kernel: Float[Array, "..."], num_inputs: int) -> Float[Array, "..."]:
    return jnp.sqrt(jnp.sum(jnp.square(kernel.astype(jnp.float32)), axis=tuple(range(num_inputs))))


@recorded
@dataclasses.dataclass(frozen=True, kw_only=True)
class DoRA(LoRA):
    """Weight-decomposed low-rank updates of some projections; the fields are those of `lora.LoRA`."""

    def make(self, projection: Projection, key: jax.Array, name: str) -> WeightDecomposed:
        """Makes the update of a projection; see `base.Adapter`."""
        return WeightDecomposed(projection, **self.settings(projection, name), key=key)
