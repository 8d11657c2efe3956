"""Recurrent layers: the input projections of all positions are one product, outside of the loop over positions."""

import jax
import jax.numpy as jnp
import pytest

from t5x_like.layers import initializers
from t5x_like.layers.recurrent import GRULayer, LSTMLayer, ProjectedLSTMLayer

BATCH, LENGTH, INPUTS, CELLS = 2, 7, 3, 5


def lstm():
    return LSTMLayer(INPUTS, CELLS, init=initializers.uniform(0.1), dtype="float32", key=jax.random.key(0))


def gru():
    return GRULayer(INPUTS, CELLS, 0.1, dtype="float32", key=jax.random.key(0))


def projected_lstm():
    clips = {"cell_clip": 3.0, "output_clip": 3.0}
    return ProjectedLSTMLayer(INPUTS, CELLS, dtype="float32", key=jax.random.key(0), **clips)


def products(jaxpr, in_loop=False):
    """Yields the number of positions of each product, and whether it is in a loop."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield in_loop, max(LENGTH if LENGTH in variable.aval.shape else 1 for variable in equation.invars)
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from products(inner, in_loop or equation.primitive.name in ("scan", "while"))


# In the loop: the recurrent product, and the projection of the cells.
@pytest.mark.parametrize(("make", "in_loop"), [(lstm, 1), (gru, 1), (projected_lstm, 2)])
def test_products_of_the_inputs_are_outside_of_the_loop(make, in_loop):
    layer, padding = make(), jnp.zeros((BATCH, LENGTH), bool)
    apply = lambda layer, x: layer(x, None, padding)[0]  # noqa: E731
    x = jnp.ones((BATCH, LENGTH, INPUTS))
    found = list(products(jax.make_jaxpr(apply)(layer, x).jaxpr))
    assert sorted(found) == sorted([(False, LENGTH), *[(True, 1)] * in_loop])
    gradient = jax.make_jaxpr(jax.grad(lambda *args: jnp.sum(apply(*args)), (0, 1)))(layer, x).jaxpr
    backward = list(products(gradient))
    assert sum(inside for inside, _ in backward) == 3 * in_loop
    # Of the projection itself, of its kernel and of its inputs.
    assert sum(not inside for inside, _ in backward) == 3
