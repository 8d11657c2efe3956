"""Recurrent layers: the input projections of all positions are one product, outside of the loop over positions."""

import jax
import jax.numpy as jnp
import pytest

from t5x_like.models.elmo import ElmoConfig, ElmoLayer
from t5x_like.models.gru import GRULayer
from t5x_like.models.lstm import LSTMConfig, LSTMLayer

BATCH, LENGTH, INPUTS, CELLS = 2, 7, 3, 5


def lstm():
    layer = LSTMLayer(LSTMConfig(vocab_size=9, embed_dim=CELLS, embedding_dim=INPUTS), INPUTS, key=jax.random.key(0))
    state, marks = jnp.zeros((BATCH, CELLS)), jnp.zeros((BATCH, LENGTH), bool)
    return layer, lambda layer, x: layer(x, state, state, marks, marks)[0]


def gru():
    layer = GRULayer(INPUTS, CELLS, 0.1, "float32", key=jax.random.key(0))
    state, marks = jnp.zeros((BATCH, CELLS)), jnp.zeros((BATCH, LENGTH), bool)
    return layer, lambda layer, x: layer(x, state, marks, marks)


def elmo():
    layer = ElmoLayer(ElmoConfig(projection_dim=INPUTS, cell_dim=CELLS, num_layers=1), key=jax.random.key(0))
    hidden, cell, padding = jnp.zeros((BATCH, INPUTS)), jnp.zeros((BATCH, CELLS)), jnp.zeros((BATCH, LENGTH), bool)
    return layer, lambda layer, x: layer(x, hidden, cell, padding)[0]


def products(jaxpr, in_loop=False):
    """Yields the number of positions of each product, and whether it is in a loop."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield in_loop, max(LENGTH if LENGTH in variable.aval.shape else 1 for variable in equation.invars)
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from products(inner, in_loop or equation.primitive.name in ("scan", "while"))


# In the loop: the recurrent product, and ELMo's projection of the cells.
@pytest.mark.parametrize(("make", "in_loop"), [(lstm, 1), (gru, 1), (elmo, 2)])
def test_products_of_the_inputs_are_outside_of_the_loop(make, in_loop):
    layer, apply = make()
    x = jnp.ones((BATCH, LENGTH, INPUTS))
    found = list(products(jax.make_jaxpr(apply)(layer, x).jaxpr))
    assert sorted(found) == sorted([(False, LENGTH), *[(True, 1)] * in_loop])
    gradient = jax.make_jaxpr(jax.grad(lambda *args: jnp.sum(apply(*args)), (0, 1)))(layer, x).jaxpr
    backward = list(products(gradient))
    assert sum(inside for inside, _ in backward) == 3 * in_loop
    # Of the projection itself, of its kernel and of its inputs.
    assert sum(not inside for inside, _ in backward) == 3
