"""Names and logical axes of leaves, and the two layouts of a stack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_like import parameters


class Layer(nnx.Module):
    def __init__(self, key):
        self.kernel = nnx.Param(jax.random.normal(key, (2, 3)), axes=("embed", "mlp"))


class Net(nnx.Module):
    def __init__(self, key, *, scanned):
        keys = jax.random.split(key, 12)
        self.layers = jax.vmap(Layer)(keys) if scanned else nnx.List([Layer(key) for key in keys])
        self.scale = nnx.Param(jnp.ones(2), axes=("embed",))


def net(scanned):
    return {"model": Net(jax.random.key(0), scanned=scanned), "objective": {}}


def test_names_follow_the_order_of_leaves():
    named = parameters.named_leaves(net(False))
    assert list(named)[:2] == ["model/layers/0/kernel", "model/layers/1/kernel"]
    assert list(named)[-1] == "model/scale"
    for ours, theirs in zip(named.values(), jax.tree.leaves(net(False)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_logical_axes_of_stacked_leaves_start_with_layers():
    assert parameters.logical_axes(net(True))["model/layers/kernel"] == ("layers", "embed", "mlp")
    assert parameters.logical_axes(net(False))["model/layers/7/kernel"] == ("embed", "mlp")
    assert parameters.logical_axes({"step": jnp.zeros((2, 2))}) == {"step": (None, None)}


def test_axes_that_do_not_match_the_shape_raise():
    with pytest.raises(ValueError, match=r"w has shape \(1, 1, 1\) with 3 dimensions, but declares axes \('embed',\)"):
        parameters.logical_axes({"w": nnx.Param(jnp.zeros((1, 1, 1)), axes=("embed",))})


def test_unstack_inverts_stack_with_more_than_ten_layers():
    stacked = parameters.stack(parameters.named_leaves(net(False)))
    expected = parameters.named_leaves(net(True))
    assert stacked.keys() == expected.keys()
    for name in stacked:
        np.testing.assert_allclose(stacked[name], expected[name], rtol=1e-6)
    again = parameters.named_leaves(parameters.unstack(stacked, net(False)))
    for name, leaf in parameters.named_leaves(net(False)).items():
        np.testing.assert_array_equal(again[name], leaf)


def test_missing_layer_raises():
    with pytest.raises(ValueError, match=r"layers \[0, 2\] are not contiguous"):
        parameters.stack({"layers/0/w": jnp.ones(1), "layers/2/w": jnp.ones(1)})


def test_count_of_shapes_and_map_named():
    shapes = jax.eval_shape(lambda: net(False))
    assert parameters.count(shapes) == 12 * 6 + 2
    doubled = parameters.map_named(lambda name, leaf: leaf * 2, net(False))
    assert jax.tree.structure(doubled) == jax.tree.structure(net(False))
