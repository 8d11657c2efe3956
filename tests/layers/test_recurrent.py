"""Recurrent layers follow their formulas, computed by NumPy position by position."""

import jax
import numpy as np
import pytest

from t5x_like.layers import initializers
from t5x_like.layers.recurrent import GRULayer, LSTMLayer, ProjectedLSTMLayer

SIZE, CELLS, LENGTH = 5, 4, 3
CLIP, OUTPUT_CLIP = 0.3, 0.1
MADE = {"dtype": "float32", "key": jax.random.key(0)}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(layer, projected, recurrent, cell):
    i, f, g, o = projected + recurrent
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def projected_lstm(layer, projected, recurrent, cell):
    i, j, f, o = projected + recurrent
    cell = np.clip(sigmoid(f + 1) * cell + sigmoid(i) * np.tanh(j), -CLIP, CLIP)
    hidden = (sigmoid(o) * np.tanh(cell)) @ np.asarray(layer.outputs.kernel[...])
    return np.clip(hidden, -OUTPUT_CLIP, OUTPUT_CLIP), cell


def gru(layer, projected, recurrent, hidden):
    r, u = sigmoid(projected[:2] + recurrent[:2])
    hidden = u * hidden + (1 - u) * np.tanh(projected[2] + r * recurrent[2])
    return hidden, hidden


LAYERS = {
    lstm: lambda: LSTMLayer(SIZE, CELLS, init=initializers.uniform(1.0), **MADE),
    projected_lstm: lambda: ProjectedLSTMLayer(SIZE, CELLS, cell_clip=CLIP, output_clip=OUTPUT_CLIP, **MADE),
    gru: lambda: GRULayer(SIZE, CELLS, 1.0, **MADE),
}


@pytest.mark.parametrize("advance", LAYERS, ids=lambda advance: advance.__name__)
def test_outputs_by_hand(advance):
    layer, rng = LAYERS[advance](), np.random.default_rng(0)
    x = rng.normal(size=(1, LENGTH, SIZE)).astype(np.float32)
    layer.inputs.bias[...] = rng.normal(size=layer.inputs.bias[...].shape).astype(np.float32)
    found, _ = layer(x, None, np.zeros((1, LENGTH), bool))
    inputs, bias, recurrent = (
        np.asarray(each[...], np.float64) for each in (layer.inputs.kernel, layer.inputs.bias, layer.recurrent.kernel)
    )
    output, state = np.zeros(layer.state_sizes[0]), np.zeros(CELLS)
    for position in range(LENGTH):
        projected = np.einsum("e,egc->gc", x[0, position], inputs) + bias
        output, state = advance(layer, projected, np.einsum("e,egc->gc", output, recurrent), state)
        np.testing.assert_allclose(found[0, position], output, rtol=1e-5, atol=1e-6)
