"""Bidirectional recurrent networks that read features: LSTM cells or GRU cells, as torch's on packed sequences.

A head gets the cells as an argument, `LSTMCells()` or `GRUCells()`, and makes networks of them with `BidirectionalRNN`.
"""

import dataclasses
import math
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t5x_like.axis_rules import VECTOR
from t5x_like.kernels.dropout import split_key
from t5x_like.models.gru import GRULayer
from t5x_like.models.lstm import LSTMConfig, LSTMLayer

Inputs = Float[Array, "batch length inputs"]
States = Float[Array, "batch length states"]


class Cells(Protocol):
    """The cells of a recurrent network."""

    def make(self, inputs: int, size: int, *, dtype: str, key: jax.Array) -> nnx.Module:
        """Creates a layer that reads rows in one direction. Devices need not divide the size of its inputs.

        Args:
          inputs: size of the inputs.
          size: size of the states.
          dtype: dtype of the products.
          key: random key for the initial values.
        """

    def states(
        self,
        layer: nnx.Module,
        x: Inputs,
        resets: Bool[Array, "batch length"],
        padding: Bool[Array, "batch length"],
        *,
        dropout_key: jax.Array | None = None,
    ) -> States:
        """Returns the hidden states of a layer, from zeros.

        Args:
          layer: result of `make`.
          x: inputs.
          resets: positions before which the state becomes 0.
          padding: positions that keep the state.
          dropout_key: random key for adapters; None disables their dropout.
        """


@dataclasses.dataclass(frozen=True)
class LSTMCells:
    """LSTM cells as torch's `nn.LSTM`, whose kernels are uniform within ±1/√size."""

    def make(self, inputs: int, size: int, *, dtype: str, key: jax.Array) -> LSTMLayer:
        """Creates a layer; see `Cells.make`."""
        return LSTMLayer(
            LSTMConfig(embed_dim=size, initializer_range=1 / math.sqrt(size), dtype=dtype),
            inputs,
            key=key,
            axis=VECTOR,
        )

    def states(
        self,
        layer: LSTMLayer,
        x: Inputs,
        resets: Bool[Array, "batch length"],
        padding: Bool[Array, "batch length"],
        *,
        dropout_key: jax.Array | None = None,
    ) -> States:
        """Returns the hidden states; see `Cells.states`."""
        zeros = jnp.zeros((x.shape[0], layer.recurrent.kernel.shape[0]), jnp.float32)
        return layer(x, zeros, zeros, resets, padding, dropout_key=dropout_key)[0]


@dataclasses.dataclass(frozen=True)
class GRUCells:
    """GRU cells as torch's `nn.GRU` (Cho et al. 2014), without the second bias of the candidate.

    Kernels of inputs are uniform within ±1/√size, recurrent kernels are orthogonal.
    """

    def make(self, inputs: int, size: int, *, dtype: str, key: jax.Array) -> GRULayer:
        """Creates a layer; see `Cells.make`."""
        return GRULayer(inputs, size, 1 / math.sqrt(size), dtype, key=key, axis=VECTOR)

    def states(
        self,
        layer: GRULayer,
        x: Inputs,
        resets: Bool[Array, "batch length"],
        padding: Bool[Array, "batch length"],
        *,
        dropout_key: jax.Array | None = None,
    ) -> States:
        """Returns the hidden states; see `Cells.states`."""
        zeros = jnp.zeros((x.shape[0], layer.cells), jnp.float32)
        return layer(x, zeros, resets, padding, dropout_key=dropout_key)


class BidirectionalRNN(nnx.Module):
    """A layer per direction over rows, whose segments are read by themselves.

    Args:
      cells: the cells.
      inputs: size of the inputs.
      size: size of the states, per direction.
      dtype: dtype of the products.
      key: random key for the initial values.

    Attributes:
      forward: layer that reads segments from their first token.
      backward: layer that reads segments from their last token.
    """

    def __init__(self, cells: Cells, inputs: int, size: int, *, dtype: str, key: jax.Array):
        self.cells = cells
        forward_key, backward_key = jax.random.split(key)
        self.forward = cells.make(inputs, size, dtype=dtype, key=forward_key)
        self.backward = cells.make(inputs, size, dtype=dtype, key=backward_key)

    def __call__(
        self, x: Inputs, segments: Int[Array, "batch length"], *, dropout_key: jax.Array | None = None
    ) -> States:
        """Returns the states of both directions, concatenated.

        Args:
          x: inputs.
          segments: the segment of each token, in each of which the states start from 0. Padding, 0, is skipped.
          dropout_key: random key for adapters; None disables their dropout.
        """
        keys = split_key(dropout_key, 2)
        backward = self._states(self.backward, x[:, ::-1], segments[:, ::-1], keys[1])
        return jnp.concatenate([self._states(self.forward, x, segments, keys[0]), backward[:, ::-1]], axis=-1)

    def _states(self, layer, x, segments, dropout_key):
        resets = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)))
        return self.cells.states(layer, x, resets, segments == 0, dropout_key=dropout_key)
