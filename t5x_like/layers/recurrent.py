"""Recurrent layers: LSTM cells, LSTM cells with projections, and GRU cells, and the scan over positions.

The input projections of all positions are one product, outside of the scan.
"""

import abc
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from t5x_like import partitioning
from t5x_like.layers import initializers
from t5x_like.layers.blocks import Hidden
from t5x_like.layers.initializers import Initializer
from t5x_like.layers.projections import Projection

# The output of the cells, and the state of LSTM cells, `[batch, size]` in float32.
State = tuple[Float[Array, "batch size"], ...]
Gates = Float[Array, "batch gates cells"]
Marks = Bool[Array, "batch length"]


class RecurrentLayer(nnx.Module, abc.ABC):
    """A layer of cells that reads rows in one direction.

    Args:
      size: Size of the inputs.
      cells: Number of cells.
      keys: Random keys for the initial values of both projections.
      init: Initializer of the kernel of the inputs.
      recurrent_init: Initializer of the recurrent kernel; None for `init`.
      output_size: Size of the output of the cells; None for the number of cells.
      dtype: Dtype of the products.
      axis: Logical axis of the inputs, `embed`, or `vector` for a size that devices need not divide.

    Attributes:
      inputs: Projection of the inputs to the gates, with kernel `[inputs, gates, cells]` and bias.
      recurrent: Projection of the last output to the gates, with kernel `[outputs, gates, cells]`.
      state_sizes: Sizes of the arrays of the state.
    """

    num_gates: ClassVar[int]
    state_sizes: tuple[int, ...]

    def __init__(
        self,
        size: int,
        cells: int,
        *,
        keys: tuple[jax.Array, jax.Array],
        init: Initializer,
        recurrent_init: Initializer | None = None,
        output_size: int | None = None,
        dtype: str,
        axis: str = "embed",
    ):
        gates, output_size = (self.num_gates, cells), output_size or cells
        options = {"axes": (axis, None, "mlp"), "key": keys[0], "init": init}
        self.inputs = Projection((size,), gates, bias=True, dtype=dtype, **options)
        options = {"axes": ("embed", None, "mlp"), "key": keys[1], "init": recurrent_init or init}
        self.recurrent = Projection((output_size,), gates, dtype=dtype, **options)

    @abc.abstractmethod
    def advance(self, state: State, projected: Gates, recurrent: Gates, dropout_key: jax.Array | None) -> State:
        """Returns the state after a position.

        Args:
          state: State before the position.
          projected: Projection of its input.
          recurrent: Projection of the output before it.
          dropout_key: Random key for adapters of further projections.
        """

    def __call__(
        self,
        x: Hidden,
        state: State | None,
        padding: Marks,
        *,
        resets: Marks | None = None,
        dropout_key: jax.Array | None = None,
    ) -> tuple[Hidden, State]:
        """Returns the outputs of all positions, and the last state.

        Args:
          x: Inputs in the order in which the layer reads them.
          state: State before the first position; None for zeros.
          padding: Positions that keep the state.
          resets: Positions before which the state becomes 0; None if there are none.
          dropout_key: Random key for adapters, whose masks all positions of the recurrent projections share; None
            disables their dropout.
        """

        def advance(before, inputs):
            projected, reset, keep = inputs
            state = before if reset is None else jax.tree.map(lambda old: jnp.where(reset[:, None], 0.0, old), before)
            recurrent = self.recurrent(state[0][:, None], dropout_key=dropout_key)[:, 0].astype(jnp.float32)
            after = self.advance(state, projected, recurrent, dropout_key)
            after = jax.tree.map(lambda old, new: jnp.where(keep[:, None], old, new), before, after)
            return after, after[0]

        if state is None:
            state = tuple(jnp.zeros((x.shape[0], size), jnp.float32) for size in self.state_sizes)
        projected = self.inputs(x, dropout_key=dropout_key).astype(jnp.float32)
        inputs = (jnp.moveaxis(projected, 1, 0), None if resets is None else resets.T, padding.T)
        state, outputs = jax.lax.scan(advance, state, inputs)
        return partitioning.shard(jnp.moveaxis(outputs, 0, 1).astype(x.dtype), "batch", "length", None), state


class LSTMLayer(RecurrentLayer):
    """LSTM cells (Hochreiter and Schmidhuber 1997), as torch's `nn.LSTM`.

    The gates are i, f, g, o:

        i, f, o = sigmoid(W x + U h + b);  g = tanh(W x + U h + b);  c ← f c + i g;  h ← o tanh(c).

    Args:
      size: Size of the inputs.
      cells: Number of cells.
      init: Initializer of both kernels.
      dtype: Dtype of the products.
      key: Random key for the initial values.
      axis: See `RecurrentLayer`.
    """

    num_gates = 4

    def __init__(self, size: int, cells: int, *, init: Initializer, dtype: str, key: jax.Array, axis: str = "embed"):
        super().__init__(size, cells, keys=jax.random.split(key), init=init, dtype=dtype, axis=axis)
        self.state_sizes = (cells, cells)

    def advance(self, state: State, projected: Gates, recurrent: Gates, dropout_key: jax.Array | None) -> State:
        """Returns the output and the state of the cells; see `RecurrentLayer.advance`."""
        gates = projected + recurrent
        update, forget, candidate, output = (gates[:, number] for number in range(self.num_gates))
        cell = jax.nn.sigmoid(forget) * state[1] + jax.nn.sigmoid(update) * jnp.tanh(candidate)
        return jax.nn.sigmoid(output) * jnp.tanh(cell), cell


class ProjectedLSTMLayer(RecurrentLayer):
    """LSTM cells with a projection P, whose state and output are clipped (Sak et al. 2014; bilm-tf of Peters et al.).

    The gates are i, j, f, o:

        i, f, o = sigmoid(W x + U h + b), with 1 added to the inputs of f;  j = tanh(W x + U h + b);
        c ← clip(f c + i j);  h ← clip(P (o tanh(c))).

    Kernels are drawn from Glorot's uniform distribution. The original has one kernel of inputs and outputs, so the
    bound of both counts the inputs and the outputs.

    Args:
      size: Size of the inputs and of the outputs.
      cells: Number of cells.
      cell_clip: Largest absolute value of the state of a cell; None: not clipped.
      output_clip: Largest absolute value of the output of the projection; None: not clipped.
      dtype: Dtype of the products.
      key: Random key for the initial values.

    Attributes:
      outputs: Projection of the cells to the outputs, with kernel `[cells, size]`, unless both have one size.
    """

    num_gates = 4
    forget_bias = 1.0

    def __init__(
        self,
        size: int,
        cells: int,
        *,
        cell_clip: float | None,
        output_clip: float | None,
        dtype: str,
        key: jax.Array,
    ):
        *keys, output_key = jax.random.split(key, 3)
        init = initializers.uniform(float(np.sqrt(6 / (2 * size + self.num_gates * cells))))
        super().__init__(size, cells, keys=keys, init=init, output_size=size, dtype=dtype)
        self.has_projection = size != cells
        if self.has_projection:
            init, axes = initializers.glorot_uniform, ("mlp", "embed")
            self.outputs = Projection((cells,), (size,), axes=axes, key=output_key, init=init, dtype=dtype)
        self.cell_clip, self.output_clip, self.state_sizes = cell_clip, output_clip, (size, cells)

    def advance(self, state: State, projected: Gates, recurrent: Gates, dropout_key: jax.Array | None) -> State:
        """Returns the output and the state of the cells; see `RecurrentLayer.advance`."""
        gates = projected + recurrent
        update, candidate, forget, output = (gates[:, number] for number in range(self.num_gates))
        cell = jax.nn.sigmoid(forget + self.forget_bias) * state[1] + jax.nn.sigmoid(update) * jnp.tanh(candidate)
        cell = _clip(cell, self.cell_clip)
        hidden = jax.nn.sigmoid(output) * jnp.tanh(cell)
        if self.has_projection:
            hidden = self.outputs(hidden[:, None], dropout_key=dropout_key)[:, 0].astype(jnp.float32)
            hidden = _clip(hidden, self.output_clip)
        return hidden, cell


class GRULayer(RecurrentLayer):
    """GRU cells (Cho et al. 2014, arXiv:1406.1078), as torch's `nn.GRU`.

    The gates are r (reset) and u (update):

        r, u = sigmoid(W x + U h + b);  c = tanh(W x + r (U h) + b);  h ← u h + (1 - u) c.

    The kernel of the inputs is uniform, the recurrent kernel is orthogonal.

    Args:
      size: Size of the inputs.
      cells: Number of cells.
      initializer_range: Bound of the uniform distribution.
      dtype: Dtype of the products.
      key: Random key for the initial values.
      axis: See `RecurrentLayer`.
    """

    num_gates = 3

    def __init__(
        self, size: int, cells: int, initializer_range: float, *, dtype: str, key: jax.Array, axis: str = "embed"
    ):
        init, orthogonal = initializers.uniform(initializer_range), initializers.orthogonal
        keys = jax.random.split(key)
        super().__init__(size, cells, keys=keys, init=init, recurrent_init=orthogonal, dtype=dtype, axis=axis)
        self.state_sizes = (cells,)

    def advance(self, state: State, projected: Gates, recurrent: Gates, dropout_key: jax.Array | None) -> State:
        """Returns the hidden state; see `RecurrentLayer.advance`."""
        (hidden,) = state
        gates = jax.nn.sigmoid(projected[:, :2] + recurrent[:, :2])
        candidate = jnp.tanh(projected[:, 2] + gates[:, 0] * recurrent[:, 2])
        return (gates[:, 1] * hidden + (1 - gates[:, 1]) * candidate,)


def segment_resets(segments: Int[Array, "batch length"]) -> Marks:
    """Returns the positions where another segment begins than before; the first position does not count."""
    return jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)))


def _clip(x: Float[Array, "batch size"], limit: float | None) -> Float[Array, "batch size"]:
    return x if limit is None else jnp.clip(x, -limit, limit)
