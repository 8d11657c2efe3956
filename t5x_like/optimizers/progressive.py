"""Progressive training: the layers of a stack are trained one after another, the first layer first."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.errors import UserError
from t5x_like.optimizers.depths import Distance
from t5x_like.optimizers.schedules import Step


@dataclasses.dataclass(frozen=True)
class ProgressiveLayers:
    """A factor that is 0 before the phase of a layer, 1 in its phase, and `after` later.

    The phase of layer i, counted from 0, are the steps from i · `steps_per_layer` to (i + 1) · `steps_per_layer` (Sun
    et al., 2020, arXiv:2004.02984, section 3.5, "progressive knowledge transfer", and the released code). Embeddings
    count as a layer before the first one, heads and a final norm as layers after the last one.

    Attributes:
      num_layers: Number of layers of the stack.
      steps_per_layer: Number of steps of a phase.
      after: The factor of layers whose phase is over.
    """

    num_layers: int
    steps_per_layer: int
    after: float = 0.1

    def __post_init__(self):
        for name in ("num_layers", "steps_per_layer"):
            if getattr(self, name) < 1:
                raise UserError(
                    f"{name}={getattr(self, name)} of progressive training is not positive. Give a positive integer."
                )
        if not 0 <= self.after <= 1:
            raise UserError(f"after={self.after} of progressive training is not between 0 and 1. Give such as 0.1.")

    def check(self, num_layers: int) -> None:
        """Checks that the model has as many layers."""
        if self.num_layers != num_layers:
            raise UserError(
                f"num_layers={self.num_layers} of progressive training: the model has {num_layers} layers. Give "
                f"{num_layers} (NUM_LAYERS)."
            )

    def __call__(self, distance: Distance, step: Step) -> Float[Array, "*layers"]:
        """Returns the factors of parameters at the given distances from the head."""
        layer = self.num_layers + 1 - jnp.asarray(distance)  # the first layer has distance num_layers + 1
        phase = jnp.asarray(step) // self.steps_per_layer
        return jnp.where(layer > phase, 0.0, jnp.where(layer == phase, 1.0, self.after)).astype(jnp.float32)
