"""The text encoders of GLUE's baselines, with both forms of attention and both kinds of cells, by hand."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numerics import assert_close

from t5x_like import parameters
from t5x_like.errors import UserError
from t5x_like.objectives.bidirectional import GRUCells, LSTMCells
from t5x_like.objectives.heads.pair_attention import Concatenation, Enhancement
from t5x_like.objectives.heads.text_ids import EndOfSentence, TokenTypes
from t5x_like.objectives.heads.text_vectors_head import TextVectors

SIZE = 5
# "a play </s> naïve <unk> a", and "play" alone.
TOKENS = np.array([[3, 4, 1, 5, 2, 3, 0], [4, 0, 0, 0, 0, 0, 0]])
BATCH = {
    "encoder_input_tokens": TOKENS,
    "encoder_segment_ids": (TOKENS != 0).astype(np.int32),
    "token_types": np.array([[0, 0, 0, 1, 1, 1, 0], [0] * 7]),
}
CONFIG = types.SimpleNamespace(embed_dim=8, compute_dtype="float32", dropout_rate=0.0)


def head_of(form):
    """Returns a head whose parameters, biases too, are random."""
    rng, head = np.random.default_rng(0), form.make(CONFIG, 2, key=jax.random.key(0))
    graph, state = nnx.split(head)
    return nnx.merge(
        graph, parameters.map_named(lambda _, x: jnp.asarray(rng.normal(size=x.shape) / 2, x.dtype), state)
    )


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rnn(layer, x):
    """Returns the states of torch's cells over `[words, inputs]`, in NumPy."""
    hidden, cell, found = np.zeros(SIZE), np.zeros(SIZE), []
    for word in x:
        gates = np.einsum("i,igh->gh", word, layer.inputs.kernel[...]) + layer.inputs.bias[...]
        recurrent = np.einsum("i,igh->gh", hidden, layer.recurrent.kernel[...])
        if len(gates) == 4:
            i, f, g, o = gates + recurrent
            cell = cell * sigmoid(f) + np.tanh(g) * sigmoid(i)
            hidden = np.tanh(cell) * sigmoid(o)
        else:
            r, u = sigmoid(gates[:2] + recurrent[:2])
            hidden = u * hidden + (1 - u) * np.tanh(gates[2] + r * recurrent[2])
        found.append(hidden)
    return np.stack(found)


def birnn(layers, x):
    return np.concatenate([rnn(layers.forward, x), rnn(layers.backward, x[::-1])[::-1]], axis=1)


def softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)


def compare(form, head, one, other):
    """Returns what the second network reads of a text with the states `one`."""
    attended = softmax(one @ other.T) @ other
    if isinstance(form, Concatenation):
        return np.concatenate([one, attended], axis=1)
    compared = np.concatenate([one, attended, one - attended, one * attended], axis=1)
    return np.maximum(compared @ head.comparison.kernel[...] + head.comparison.bias[...], 0)


@pytest.mark.parametrize("cells", [LSTMCells(), GRUCells()])
@pytest.mark.parametrize("attention", [None, Concatenation(), Enhancement()])
@pytest.mark.parametrize(("text_ids", "first"), [(EndOfSentence(), 2), (TokenTypes(), 3)])
def test_logits_by_hand(cells, attention, text_ids, first):
    form = TextVectors(
        texts_per_row=2, text_ids=text_ids, attention=attention, cells=cells, size=SIZE, classifier_size=7
    )
    head, rng = head_of(form), np.random.default_rng(1)
    hidden = rng.normal(size=(2, 7, 8)).astype(np.float32)
    found = jax.jit(lambda hidden: head(form.read(hidden, BATCH)))(hidden)
    assert found.shape == (2, 1, 2) and np.isfinite(found).all()
    u, v = (hidden[0, part] for part in (slice(0, first), slice(3, 6)))
    assert len(head.encoder) == 2
    for layer in head.encoder:
        u, v = birnn(layer, u), birnn(layer, v)
    if attention is not None:
        u, v = (birnn(head.composition, compare(attention, head, *pair)) for pair in ((u, v), (v, u)))
    u, v = u.max(axis=0), v.max(axis=0)
    x = np.concatenate([u, v, np.abs(u - v), u * v])
    x = np.tanh(x @ head.dense.kernel[...] + head.dense.bias[...])
    expected = x @ head.classifier.kernel[...] + head.classifier.bias[...]
    assert_close({"logits": found[0, 0]}, {"logits": expected})
    other = hidden.copy()
    other[1, 1:] = 7  # padding
    np.testing.assert_allclose(head(form.read(other, BATCH))[1], found[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": Concatenation()}, "texts_per_row=1 of TextVectors with attention=Concatenation"),
        ({"attention": True, "texts_per_row": 2}, "attention=True of TextVectors: not a form of attention"),
        ({"size": 0}, "size=0 of TextVectors"),
        ({"num_layers": 1.5}, "num_layers=1.5 of TextVectors is not a positive integer"),
    ],
)
def test_invalid_forms_raise(settings, message):
    with pytest.raises(UserError, match=message):
        TextVectors(**settings)
