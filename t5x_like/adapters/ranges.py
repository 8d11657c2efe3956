"""Ranges of quantized activations in a training step: moving averages in place of gradient descent.

A range is a parameter whose "gradient" is what a batch observes (`kernels.quantization.observe`). It is in the
checkpoint and the averages of a run like the other parameters, but not in its optimizer, its norms and its clipping.
"""

from typing import Any

import jax
import jax.numpy as jnp

from t5x_like import parameters
from t5x_like.adapters.quantization import is_range
from t5x_like.errors import UserError
from t5x_like.kernels import quantization


def split(params: Any) -> tuple[Any, Any]:
    """Splits parameters or gradients, with None in the places of the others.

    Returns:
      What an optimizer updates, and the ranges.
    """

    def select(of_ranges):
        return parameters.map_named(lambda name, leaf: leaf if is_range(name) == of_ranges else None, params)

    return select(False), select(True)


def update(ranges: Any, observed: Any) -> Any:
    """Returns ranges after a batch; see `kernels.quantization.updated`.

    Args:
      ranges: the ranges before.
      observed: their gradients.
    """
    return jax.tree.map(quantization.updated, ranges, observed)


def accumulate(total: Any, gradients: Any) -> Any:
    """Adds the gradients of a microbatch; the observation of a batch is the largest of its microbatches.

    Args:
      total: gradients of the microbatches before, initially 0.
      gradients: gradients of the microbatch.
    """
    rest, ranges = split(total)
    added, observed = split(gradients)
    rest, ranges = jax.tree.map(jnp.add, rest, added), jax.tree.map(jnp.maximum, ranges, observed)
    return jax.tree.map(lambda x, y: y if x is None else x, rest, ranges, is_leaf=lambda leaf: leaf is None)


def check(params: Any, gather: str) -> None:
    """Checks that devices see the activations of all rows.

    Args:
      params: the trainable parameters.
      gather: see `objectives.gathering`.

    Raises:
      UserError: each device computes the gradient of its rows alone.
    """
    if gather == "per_step" and any(map(is_range, parameters.named_leaves(params))):
        raise UserError(
            "GATHER_PARAMETERS='per_step': each device sees the activations of its rows alone, but the ranges of "
            "FakeQuantized.activations='static' belong to the whole batch. Give 'per_use', or activations='dynamic'."
        )
