"""Projections, norms, embeddings and feed-forward blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.kernels.dropout import Dropout
from t5x_like.layers import initializers, recompute
from t5x_like.layers.embeddings import Embedder
from t5x_like.layers.mlp import MLP, gelu, linear, relu
from t5x_like.layers.norms import LayerNorm, RMSNorm
from t5x_like.layers.projections import Projection

KEY = jax.random.key(0)
INIT = initializers.fan_in()


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_projections_with_one_and_two_contracted_dimensions():
    x = random(2, 3, 4)
    into = Projection((4,), (5, 6), axes=("embed", "heads", "kv"), key=KEY, init=INIT)
    out = Projection((5, 6), (4,), axes=("heads", "kv", "embed"), key=KEY, init=INIT)
    heads = np.einsum("ble,ehk->blhk", x, into.kernel[...])
    np.testing.assert_allclose(into(x), heads, atol=1e-5)
    np.testing.assert_allclose(out(heads), np.einsum("blhk,hke->ble", heads, out.kernel[...]), atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "outputs", "init", "stddev", "largest"),
    [
        ((256,), (8, 32), initializers.fan_in(), 256**-0.5, None),
        ((8, 32), (256,), initializers.fan_in(), 256**-0.5, None),
        ((256,), (8, 32), initializers.fan_in(1 / 32), (256 * 32) ** -0.5, None),
        # Truncation at ±2 standard deviations reduces the standard deviation to 0.8796; rescaling moves the bounds out.
        ((256,), (1024,), initializers.fan_in(truncated=True), 256**-0.5, 2 / 0.8796 * 256**-0.5),
        ((256,), (1024,), initializers.truncated_normal(0.02), 0.8796 * 0.02, 0.04),
        ((256,), (1024,), initializers.normal(0.02), 0.02, None),
    ],
)
def test_initial_kernel_distributions(inputs, outputs, init, stddev, largest):
    kernel = np.asarray(Projection(inputs, outputs, axes=("x",) * 3, key=KEY, init=init).kernel[...])
    assert kernel.dtype == np.float32
    assert abs(kernel.std() / stddev - 1) < 0.02
    if largest is None:
        assert np.abs(kernel).max() > 2.5 * stddev
    else:
        assert 0.99 * largest < np.abs(kernel).max() <= largest * (1 + 1e-3)


def test_computation_uses_dtype_and_parameters_are_float32():
    mlp = MLP(4, 8, activations=("gelu", "linear"), key=KEY, init=INIT, dtype="bfloat16")
    assert mlp(random(1, 2, 4).astype(jnp.bfloat16))[0].dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in parameters.named_leaves(mlp).values()} == {jnp.dtype("float32")}


def test_rms_norm_equals_numpy():
    x = random(2, 3, 8) * 5
    norm = RMSNorm(8, epsilon=1e-2)
    norm.scale.set_value(jnp.arange(8.0))
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-2) * np.arange(8)
    np.testing.assert_allclose(norm(x), expected, rtol=1e-5)


def test_layer_norm_equals_numpy():
    x = random(2, 3, 8) * 5 + 2
    norm = LayerNorm(8, epsilon=1e-2)
    norm.scale.set_value(jnp.arange(8.0))
    norm.bias.set_value(jnp.arange(8.0) - 3)
    centered = x - x.mean(-1, keepdims=True)
    expected = centered / np.sqrt(x.var(-1, keepdims=True) + 1e-2) * np.arange(8) + np.arange(8) - 3
    np.testing.assert_allclose(norm(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [RMSNorm, LayerNorm])
def test_gradients_of_norms_equal_those_of_the_formula(make):
    norm = make(8, epsilon=1e-2)
    x, dy = jnp.asarray(random(2, 5, 8)) + 0.5, jnp.asarray(random(5, 2, 8)).swapaxes(0, 1)
    params = jax.tree.map(lambda leaf: leaf + jnp.arange(8.0) / 8, norm)

    def formula(params, x):
        center = jnp.mean(x, axis=-1, keepdims=True) if make is LayerNorm else 0.0
        scale = jnp.mean((x - center) ** 2, axis=-1, keepdims=True) + 1e-2
        y = (x - center) / jnp.sqrt(scale) * params.scale[...]
        return y + params.bias[...] if make is LayerNorm else y

    found = jax.grad(lambda params, x: jnp.sum(params(x) * dy), argnums=(0, 1))(params, x)
    expected = jax.grad(lambda params, x: jnp.sum(formula(params, x) * dy), argnums=(0, 1))(params, x)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_projection_adds_bias():
    x = random(2, 3, 4)
    into = Projection((4,), (5, 6), axes=("embed", "heads", "kv"), key=KEY, init=INIT, bias=True)
    assert parameters.logical_axes(into)["bias"] == ("heads", "kv")
    before = into(x)
    into.bias.set_value(jnp.arange(30.0).reshape(5, 6))
    np.testing.assert_allclose(into(x) - before, np.broadcast_to(into.bias[...], before.shape), atol=1e-4)


def test_norm_statistics_are_float32():
    # In bfloat16 the error of the mean of 1000 equal squares exceeds its rounding.
    x = jnp.full((1, 1, 1000), 1.0078125, jnp.bfloat16)
    assert RMSNorm(1000)(x).dtype == jnp.bfloat16
    np.testing.assert_array_equal(RMSNorm(1000)(x).astype(np.float32), 1.0)


def test_embedder_looks_up_and_attends():
    embedder = Embedder(11, 4, key=KEY)
    table = np.asarray(embedder.embedding[...])
    tokens = np.array([[3, 0, 10]])
    np.testing.assert_array_equal(embedder(tokens), table[tokens])
    hidden = random(1, 3, 4)
    np.testing.assert_allclose(embedder.attend(hidden), hidden @ table.T, atol=1e-5)


def test_token_outside_the_vocabulary_gives_nan():
    assert np.isnan(Embedder(11, 4, key=KEY)(np.array([[3, 11]]))).tolist() == [[[False] * 4, [True] * 4]]


def test_logits_are_float32():
    embedder = Embedder(11, 4, key=KEY, dtype="bfloat16")
    assert embedder(np.array([[3]])).dtype == jnp.bfloat16
    assert embedder.attend(jnp.ones((1, 1, 4), jnp.bfloat16)).dtype == jnp.float32


def test_mlp_with_and_without_gating():
    x = random(1, 2, 4)
    plain = MLP(4, 8, activations=("relu",), key=KEY, init=INIT)
    assert sorted(parameters.named_leaves(plain)) == ["wi/kernel", "wo/kernel"]
    wi, wo = plain.wi.kernel[...], plain.wo.kernel[...]
    np.testing.assert_allclose(plain(x)[0], np.maximum(x @ wi, 0) @ wo, atol=1e-5)
    gated = MLP(4, 8, activations=("gelu", "linear"), key=KEY, init=INIT)
    gate, value, wo = gated.wi_0.kernel[...], gated.wi_1.kernel[...], gated.wo.kernel[...]
    np.testing.assert_allclose(gated(x)[0], (gelu(x @ gate) * (x @ value)) @ wo, atol=1e-5)


def test_mlp_of_a_scan_saves_its_hidden_layer_once_and_has_the_same_gradient():
    mlp = MLP(8, 16, activations=("gelu", "linear"), init=INIT, key=KEY)
    x = jnp.asarray(random(2, 3, 8))
    loss = jax.tree_util.Partial(lambda mlp, x: jnp.sum(mlp(x)[0] ** 2))
    plain = jax.grad(loss)(mlp, x)

    with recompute.in_scan():
        residuals = jax.tree.leaves(jax.vjp(loss, mlp, x)[1])
        scanned, jaxpr = jax.grad(loss)(mlp, x), jax.make_jaxpr(jax.grad(loss))(mlp, x)

    assert [leaf.shape for leaf in residuals].count((2, 3, 16)) == len(mlp.names)
    assert "optimization_barrier" not in str(jaxpr)
    jax.tree.map(np.testing.assert_array_equal, plain, scanned)


def test_activations_equal_numpy():
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    np.testing.assert_array_equal(relu(x), [0, 0, 2])
    np.testing.assert_array_equal(linear(x), x)
    np.testing.assert_allclose(gelu(x), 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), atol=1e-6)


def test_mlp_dropout_is_shared_along_the_row():
    mlp = MLP(4, 64, activations=("relu",), dropout=Dropout(0.5, (-2,)), key=KEY, init=INIT)
    x = np.repeat(random(1, 1, 4), 3, axis=1)
    dropped = np.asarray(mlp(x, dropout_key=KEY)[0])
    np.testing.assert_allclose(dropped, np.repeat(dropped[:, :1], 3, axis=1), atol=1e-6)
    assert np.abs(dropped - mlp(x)[0]).max() > 0.01
