"""Bidirectional recurrent networks that read features: LSTM cells or GRU cells, as torch's on packed sequences.

A head gets the cells as an argument, `LSTMCells()` or `GRUCells()`, and makes networks of them with `BidirectionalRNN`.
"""

import dataclasses
import math
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from t5x_like.axis_rules import VECTOR
from t5x_like.kernels.dropout import split_key
from t5x_like.layers import initializers
from t5x_like.layers.recurrent import GRULayer, LSTMLayer, RecurrentLayer, segment_resets

Inputs = Float[Array, "batch length inputs"]
States = Float[Array, "batch length states"]


class Cells(Protocol):
    """The cells of a recurrent network."""

    def make(self, inputs: int, size: int, *, dtype: str, key: jax.Array) -> RecurrentLayer:
        """Creates a layer that reads rows in one direction. Devices need not divide the size of its inputs.

        Args:
          inputs: Size of the inputs.
          size: Size of the states.
          dtype: Dtype of the products.
          key: Random key for the initial values.
        """


@dataclasses.dataclass(frozen=True)
class LSTMCells:
    """LSTM cells as torch's `nn.LSTM`, whose kernels are uniform within ±1/√size."""

    def make(self, inputs: int, size: int, *, dtype: str, key: jax.Array) -> LSTMLayer:
        """Creates a layer; see `Cells.make`."""
        init = initializers.uniform(1 / math.sqrt(size))
        return LSTMLayer(inputs, size, init=init, dtype=dtype, key=key, axis=VECTOR)


@dataclasses.dataclass(frozen=True)
class GRUCells:
    """GRU cells as torch's `nn.GRU` (Cho et al. 2014), without the second bias of the candidate.

    Kernels of inputs are uniform within ±1/√size, recurrent kernels are orthogonal.
    """

    def make(self, inputs: int, size: int, *, dtype: str, key: jax.Array) -> GRULayer:
        """Creates a layer; see `Cells.make`."""
        return GRULayer(inputs, size, 1 / math.sqrt(size), dtype=dtype, key=key, axis=VECTOR)


class BidirectionalRNN(nnx.Module):
    """A layer per direction over rows, whose segments are read by themselves.

    Args:
      cells: The cells.
      inputs: Size of the inputs.
      size: Size of the states, per direction.
      dtype: Dtype of the products.
      key: Random key for the initial values.

    Attributes:
      forward: Layer that reads segments from their first token.
      backward: Layer that reads segments from their last token.
    """

    def __init__(self, cells: Cells, inputs: int, size: int, *, dtype: str, key: jax.Array):
        forward_key, backward_key = jax.random.split(key)
        self.forward = cells.make(inputs, size, dtype=dtype, key=forward_key)
        self.backward = cells.make(inputs, size, dtype=dtype, key=backward_key)

    def __call__(
        self, x: Inputs, segments: Int[Array, "batch length"], *, dropout_key: jax.Array | None = None
    ) -> States:
        """Returns the states of both directions, concatenated.

        Args:
          x: Inputs.
          segments: The segment of each token, in each of which the states start from 0. Padding, 0, is skipped.
          dropout_key: Random key for adapters; None disables their dropout.
        """
        forward_key, backward_key = split_key(dropout_key, 2)
        backward = self._read(self.backward, x[:, ::-1], segments[:, ::-1], backward_key)
        return jnp.concatenate([self._read(self.forward, x, segments, forward_key), backward[:, ::-1]], axis=-1)

    def _read(self, layer: RecurrentLayer, x: Inputs, segments: Array, dropout_key: jax.Array | None) -> States:
        resets = segment_resets(segments)
        return layer(x, None, segments == 0, resets=resets, dropout_key=dropout_key)[0]
