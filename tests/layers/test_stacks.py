"""Stacks of layers: scanned or unrolled, with and without rematerialization."""

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from lanes import others_are_full
from numerics import assert_close

from t5x_like import parameters
from t5x_like.kernels.contraction import contract
from t5x_like.kernels.dropout import dropout
from t5x_like.kernels.masks import BlockLists, Mask
from t5x_like.layers import stacks
from t5x_like.layers.captures import parse as captures_of
from t5x_like.models.bert import BertConfig

NUMBER, SIZE = 3, 16


class Layer(nnx.Module):
    def __init__(self, key):
        self.kernel = nnx.Param(jax.random.normal(key, (SIZE, SIZE)) / SIZE**0.5, axes=("embed", "embed"))

    def __call__(self, x, key):
        return x + dropout(jnp.sin(jnp.tanh(x @ self.kernel[...])), 0.5, key)


def make(scan):
    return {"layers": stacks.make_layers(Layer, NUMBER, key=jax.random.key(0), scan=scan)}


def stack_outputs(layers, outs):
    return outs if stacks.is_scanned(layers) else jax.tree.map(lambda *each: jnp.stack(each), *outs)


def loss(tree, x, remat="none", key=None):
    def function(layer, x, index, key):
        x = layer(x, key)
        return x, {"sum": jnp.sum(x), "index": index * jnp.ones(())}

    x, outs = stacks.apply_layers(tree["layers"], function, x, order=range(NUMBER), dropout_key=key, remat=remat)
    return jnp.sum(x**2), stack_outputs(tree["layers"], outs)


X = np.random.default_rng(0).normal(size=(4, SIZE)).astype(np.float32)


def products(jaxpr):
    """Counts the products in a jaxpr and its inner jaxprs."""
    inner = [inner for equation in jaxpr.eqns for inner in jax.extend.core.jaxprs_in_params(equation.params)]
    return sum(equation.primitive.name == "dot_general" for equation in jaxpr.eqns) + sum(map(products, inner))


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize(("remat", "recomputed"), [("none", 0), ("dots", 0), ("full", 1)])
def test_dots_policy_saves_products_with_parameters(remat, recomputed, platform):
    def layer(kernel, x, index, key):
        return jnp.sin(contract(jnp.tanh(x), kernel, 1, platform=platform)), None

    def squares(kernels, x):
        x, _ = stacks.apply_layers(kernels, layer, x, order=range(NUMBER), remat=remat)
        return jnp.sum(x**2)

    kernels = jnp.ones((NUMBER, SIZE, SIZE))
    jaxpr = jax.make_jaxpr(jax.grad(squares))(kernels, X).jaxpr
    # One product in the forward loop and two in the backward loop.
    assert products(jaxpr) == 3 + recomputed


def test_both_layouts_have_the_same_initial_values():
    unrolled, scanned = (parameters.named_leaves(make(scan)) for scan in (False, True))
    assert list(unrolled) == [f"layers/{i}/kernel" for i in range(NUMBER)]
    np.testing.assert_array_equal(parameters.stack(unrolled)["layers/kernel"], scanned["layers/kernel"])
    assert parameters.logical_axes(make(True)) == {"layers/kernel": ("layers", "embed", "embed")}


@pytest.mark.parametrize("remat", sorted(stacks.REMAT_POLICIES))
@pytest.mark.parametrize("scan", [False, True])
def test_layouts_and_remat_policies_are_equivalent(scan, remat):
    key = jax.random.key(1)
    differentiate = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnames="remat")
    (expected, outs), gradient = differentiate(make(False), X, key=key)
    (value, other_outs), other = differentiate(make(scan), X, remat=remat, key=key)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(other_outs["sum"], outs["sum"], rtol=1e-5)
    np.testing.assert_array_equal(other_outs["index"], [0, 1, 2])
    assert_close(*(parameters.stack(parameters.named_leaves(tree)) for tree in (other, gradient)))


def test_layers_have_different_dropout():
    tree = {"layers": nnx.List([make(False)["layers"][0] for _ in range(NUMBER)])}

    def function(layer, carry, index, key):
        return carry, layer(X, key)

    _, outs = stacks.apply_layers(tree["layers"], function, None, order=range(NUMBER), dropout_key=jax.random.key(0))
    assert not np.array_equal(outs[0], outs[1]) and not np.array_equal(outs[1], outs[2])


@pytest.mark.parametrize("scan", [False, True])
def test_alternating_layer_functions(scan):
    layers = stacks.make_layers(Layer, 4, key=jax.random.key(0), scan=scan)
    functions = [lambda layer, x, index, key, sign=sign: (sign * x + index, x) for sign in (1, -1)]
    x, outs = stacks.apply_layers(layers, functions, jnp.asarray(5.0), order=range(4))
    # 5 -> 5 + 0 -> -5 + 1 -> -4 + 2 -> 2 + 3
    assert float(x) == 5.0
    np.testing.assert_array_equal(stack_outputs(layers, outs), [5, 5, -4, -2])
    # The last repetition of a pattern may be incomplete, and a pattern longer than the layers.
    x, outs = stacks.apply_layers(layers, functions, jnp.asarray(5.0), order=range(3))
    assert float(x) == -4.0 + 2.0
    np.testing.assert_array_equal(stack_outputs(layers, outs), [5, 5, -4])
    x, _ = stacks.apply_layers(layers, functions, jnp.asarray(5.0), order=range(1))
    assert float(x) == 5.0


ORDERS = {
    "slice": (1, 2),
    "repeated": (1,) * 6,
    "groups": (0, 0, 1, 1, 2, 2),
    "again": (0, 1, 2, 2),
    "cycles": (0, 1, 2, 0, 1, 2),
    "odd part": (0, 1, 2, 0),
}


@pytest.mark.parametrize(
    ("order", "period", "remat"),
    others_are_full(
        [*((name, 2, "full") for name in ORDERS), ("cycles", 1, "none"), ("odd part", 2, "none")],
        [("groups", 2, "full"), ("odd part", 2, "full"), ("cycles", 1, "none")],
    ),
)
def test_order_of_layers(order, period, remat):
    """Layers in any order equal a loop: values, outputs, and gradients that sum over the applications of a layer."""
    order, key = ORDERS[order], jax.random.key(1)
    inputs = jnp.asarray(np.random.default_rng(1).normal(size=(len(order), SIZE)), jnp.float32)
    keep = {"every": tuple(range(len(order))), "last": (len(order) - 1,)}

    def apply(layer, x, index, key, sign):
        x = layer(sign * x + inputs[index], key)  # an input by the index of the application
        return x, {"every": x[0], "last": 2 * x}

    def loop(tree):
        x, outs = X, []
        for index, (stored, each) in enumerate(zip(order, jax.random.split(key, len(order)), strict=True)):
            x, out = apply(tree["layers"][stored], x, index, each, (1, -1)[index % period])
            outs.append(out["every"])
        return jnp.sum(x**2), {"every": jnp.stack(outs), "last": 2 * x[None]}

    def run(tree):
        functions = [lambda *each, sign=sign: apply(*each, sign) for sign in (1, -1)[:period]]
        options = {"order": order, "dropout_key": key, "remat": remat, "keep": keep}
        x, kept = stacks.apply_layers(tree["layers"], functions, X, **options)
        return jnp.sum(x**2), {name: jnp.stack(list(each)) for name, each in kept.items()}

    (value, outs), gradient = jax.jit(jax.value_and_grad(loop, has_aux=True))(make(False))
    for scan in (False, True):
        (found, kept), other = jax.jit(jax.value_and_grad(run, has_aux=True))(make(scan))
        np.testing.assert_allclose(found, value, rtol=1e-5)
        assert_close(kept, outs)
        assert_close(*(parameters.stack(parameters.named_leaves(tree)) for tree in (other, gradient)))


def test_remat_policies_reduce_memory():
    def temporary_bytes(remat):
        # Under a scan, every saved value is an array with a leading dimension `layers`.
        compiled = (
            jax.jit(jax.grad(lambda tree: loss(tree, jnp.ones((4096, SIZE)), remat)[0])).lower(make(True)).compile()
        )
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes("full") < temporary_bytes("dots") < temporary_bytes("none")


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("period", [1, 2])
def test_only_kept_outputs_are_returned(scan, period):
    layers = stacks.make_layers(Layer, 4, key=jax.random.key(0), scan=scan)

    def function(layer, x, index, key):
        return x + 1, {"all": x, "some": 10 * x}

    keep = {"all": (0, 1, 2, 3), "some": (1, 3)}
    x, kept = stacks.apply_layers(layers, [function] * period, jnp.zeros(()), order=range(4), keep=keep)
    assert float(x) == 4
    np.testing.assert_array_equal(kept["all"], [0, 1, 2, 3])
    np.testing.assert_array_equal(kept["some"], [10, 30])


def test_memory_of_a_scan_holds_only_kept_outputs():
    """The scores of one layer do not take the memory of all layers' scores, also in the gradient."""
    queries, layers = 256, 16
    size = 4 * queries**2  # bytes of the scores of a layer
    stack = jnp.ones((layers, SIZE, SIZE))

    def last_scores(stack, x, indices):
        def function(kernel, x, index, key):
            projected = jnp.tanh(x @ kernel)
            return projected, {"scores": projected @ projected.T}

        _, kept = stacks.apply_layers(stack, function, x, order=range(layers), keep={"scores": indices})
        return kept["scores"][-1]

    def temporary_bytes(function, indices):
        compiled = (
            jax.jit(lambda stack, x: function(stack, x, indices)).lower(stack, jnp.ones((queries, SIZE))).compile()
        )
        return compiled.memory_analysis().temp_size_in_bytes

    def gradient(stack, x, indices):
        return jax.grad(lambda stack: jnp.sum(last_scores(stack, x, indices) ** 2))(stack)

    for function in (last_scores, gradient):
        assert temporary_bytes(function, (layers - 1,)) < 8 * size
        assert temporary_bytes(function, range(layers)) > layers * size


@pytest.mark.parametrize("scan", [False, True])
def test_layers_have_block_lists_of_their_own(scan):
    """Lists per layer and head are an array, of which each layer takes its own by index, also under a scan."""
    config = BertConfig(vocab_size=9, embed_dim=4, mlp_dim=4, num_heads=2, head_dim=2, num_layers=2, scan_layers=scan)
    encoder, length = config.make(jax.random.key(0)).encoder, 6
    lists = jnp.array([[[[0], [1], [2]], [[1], [1], [1]]], [[[2], [2], [2]], [[0], [2], [1]]]])

    def inputs(layer):
        return {"attention": {"mask": Mask(blocks=BlockLists(lists[layer], 2))}}

    name = "encoder/layers/attention/probabilities"
    captures = captures_of((name,), {"encoder": (2, encoder.capturable)})["encoder"]
    _, captured = jax.jit(lambda x: encoder(x, inputs, captures=captures))(jnp.ones((1, length, 4)))
    for layer, head, query in np.ndindex(2, 2, length):
        (block,) = lists[layer, head, query // 2]
        expected = [0.5 * (key // 2 == block) for key in range(length)]
        np.testing.assert_allclose(captured[name][layer, 0, head, query], expected, atol=1e-6)
