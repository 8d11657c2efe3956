"""Ranges of quantized activations in a training step: moving averages in place of gradient descent."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from t5x_like import parameters
from t5x_like.adapters.lifecycle import Hooks
from t5x_like.errors import UserError
from t5x_like.kernels import quantization

# Name of the parameter of a quantization that holds the range of the inputs of its module.
RANGE = "range"


def is_range(name: str) -> bool:
    """Returns whether a parameter is the range of a static quantization, by its name."""
    return name.endswith(f"{parameters.QUANTIZATION}/{RANGE}")


@dataclasses.dataclass(frozen=True)
class MovingRanges(Hooks):
    """Updates the ranges of a run by what a batch observes; `kernels.quantization.observe` gives it as a gradient."""

    def check(self, trainable: Any, frozen: Any, *, gather: str) -> None:
        """Checks that devices see the activations of all rows.

        Raises:
          UserError: Each device computes the gradient of its rows alone.
        """
        del frozen
        if gather == "per_step" and any(map(self.is_observed, parameters.named_leaves(trainable))):
            raise UserError(
                "GATHER_PARAMETERS='per_step': each device sees the activations of its rows alone, but the ranges of "
                "FakeQuantized.activations='static' belong to the whole batch. Give 'per_use', or "
                "activations='dynamic'."
            )

    def is_observed(self, name: str) -> bool:
        """Returns whether a parameter is a range."""
        return is_range(name)

    def combine_observations(self, one: Array, other: Array) -> Array:
        """Returns the element-wise maximum of the observations of two microbatches."""
        return jnp.maximum(one, other)

    def update_observed(self, old: Array, observation: Array) -> Array:
        """Returns the moving average; see `kernels.quantization.updated`."""
        return quantization.updated(old, observation)
