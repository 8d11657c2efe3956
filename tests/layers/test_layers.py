"""Projections, norms, embeddings and feed-forward blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like import parameters
from t5x_like.layers.attention import MultiHeadAttention
from t5x_like.layers.embeddings import TokenEmbedder
from t5x_like.layers.mlp import MLP, gelu, linear, relu
from t5x_like.layers.norms import RMSNorm
from t5x_like.layers.projections import Projection

KEY = jax.random.key(0)


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_projections_contract_one_or_several_dimensions():
    x = random(2, 3, 4)
    into = Projection((4,), (5, 6), axes=("embed", "heads", "kv"), key=KEY)
    out = Projection((5, 6), (4,), axes=("heads", "kv", "embed"), key=KEY)
    heads = np.einsum("ble,ehk->blhk", x, into.kernel[...])
    np.testing.assert_allclose(into(x), heads, atol=1e-5)
    np.testing.assert_allclose(out(heads), np.einsum("blhk,hke->ble", heads, out.kernel[...]), atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "outputs", "options", "deviation"),
    [
        ((256,), (8, 32), {"distribution": "normal"}, 256**-0.5),
        ((8, 32), (256,), {"distribution": "normal"}, 256**-0.5),
        ((256,), (8, 32), {"distribution": "normal", "variance": 1 / 32}, (256 * 32) ** -0.5),
        ((256,), (1024,), {}, 256**-0.5),
    ],
)
def test_initial_kernels_have_the_variance_of_their_inputs(inputs, outputs, options, deviation):
    kernel = np.asarray(Projection(inputs, outputs, axes=("x",) * 3, key=KEY, **options).kernel[...])
    assert kernel.dtype == np.float32
    assert abs(kernel.std() / deviation - 1) < 0.02
    truncated = "distribution" not in options
    # A normal distribution cut at two deviations and stretched back to its variance ends at 2 / 0.8796 of them.
    assert (np.abs(kernel).max() <= 2 / 0.879 * deviation) == truncated


def test_queries_are_initialised_with_the_scale_that_scores_lack():
    attention = MultiHeadAttention(64, heads=16, head_dim=16, key=KEY)
    ratio = np.std(attention.query.kernel[...]) / np.std(attention.key.kernel[...])
    assert abs(ratio / 16**-0.5 - 1) < 0.03


def test_computation_is_in_the_asked_dtype_and_parameters_stay_float32():
    mlp = MLP(4, 8, activations=("gelu", "linear"), key=KEY, dtype="bfloat16")
    assert mlp(random(1, 2, 4).astype(jnp.bfloat16)).dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in parameters.named_leaves(mlp).values()} == {jnp.dtype("float32")}


def test_rms_norm():
    x = random(2, 3, 8) * 5
    norm = RMSNorm(8, epsilon=1e-2)
    norm.scale.set_value(jnp.arange(8.0))
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-2) * np.arange(8)
    np.testing.assert_allclose(norm(x), expected, rtol=1e-5)


def test_statistics_of_a_norm_are_float32():
    # In bfloat16 the mean of 1000 equal squares is off by more than its rounding.
    x = jnp.full((1, 1, 1000), 1.0078125, jnp.bfloat16)
    assert RMSNorm(1000)(x).dtype == jnp.bfloat16
    np.testing.assert_array_equal(RMSNorm(1000)(x).astype(np.float32), 1.0)


def test_embeddings_are_rows_of_the_table_and_its_products():
    embedder = TokenEmbedder(11, 4, key=KEY)
    table = np.asarray(embedder.embedding[...])
    tokens = np.array([[3, 0, 10]])
    np.testing.assert_array_equal(embedder(tokens), table[tokens])
    hidden = random(1, 3, 4)
    np.testing.assert_allclose(embedder.attend(hidden), hidden @ table.T, atol=1e-5)


def test_a_token_outside_the_vocabulary_shows():
    assert np.isnan(TokenEmbedder(11, 4, key=KEY)(np.array([[3, 11]]))).tolist() == [[[False] * 4, [True] * 4]]


def test_logits_are_float32():
    embedder = TokenEmbedder(11, 4, key=KEY, dtype="bfloat16")
    assert embedder(np.array([[3]])).dtype == jnp.bfloat16
    assert embedder.attend(jnp.ones((1, 1, 4), jnp.bfloat16)).dtype == jnp.float32


def test_plain_and_gated_blocks():
    x = random(1, 2, 4)
    plain = MLP(4, 8, activations=("relu",), key=KEY)
    assert sorted(parameters.named_leaves(plain)) == ["wi/kernel", "wo/kernel"]
    wi, wo = plain.wi.kernel[...], plain.wo.kernel[...]
    np.testing.assert_allclose(plain(x), np.maximum(x @ wi, 0) @ wo, atol=1e-5)
    gated = MLP(4, 8, activations=("gelu", "linear"), key=KEY)
    gate, value, wo = gated.wi_0.kernel[...], gated.wi_1.kernel[...], gated.wo.kernel[...]
    np.testing.assert_allclose(gated(x), (gelu(x @ gate) * (x @ value)) @ wo, atol=1e-5)


def test_activations():
    x = np.array([-1.0, 0.0, 2.0], np.float32)
    np.testing.assert_array_equal(relu(x), [0, 0, 2])
    np.testing.assert_array_equal(linear(x), x)
    np.testing.assert_allclose(gelu(x), 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), atol=1e-6)


def test_dropout_in_a_block_is_alike_along_a_row():
    mlp = MLP(4, 64, activations=("relu",), dropout_rate=0.5, key=KEY)
    x = np.repeat(random(1, 1, 4), 3, axis=1)
    dropped = np.asarray(mlp(x, dropout_key=KEY))
    np.testing.assert_allclose(dropped, np.repeat(dropped[:, :1], 3, axis=1), atol=1e-6)
    assert np.abs(dropped - mlp(x)).max() > 0.01
