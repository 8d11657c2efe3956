"""The products of attention on CPU: values and gradients, and no transposed array of the size of the scores."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.kernels import score_products

BATCH, Q_LEN, KV_LEN, KV_HEADS, SIZE = 2, 16, 32, 3, 4


def inputs(group):
    rng = np.random.default_rng(0)
    shapes = [(BATCH, Q_LEN, KV_HEADS, group, SIZE), *[(BATCH, KV_LEN, KV_HEADS, SIZE)] * 2]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def gradients(platform):
    def loss(q, k, v):
        weights = jax.nn.softmax(score_products.scores(q, k, platform=platform))
        return jnp.sum(jnp.sin(score_products.averages(weights, v, platform=platform)))

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))


def copied_sizes(program):
    """Returns the sizes of the arrays that a compiled program copies or transposes in memory."""
    found = re.findall(r" = f32\[([\d,]+)\]\S* (?:copy|transpose)\(", program)
    return [np.prod([int(size) for size in dims.split(",")]) for dims in found]


@pytest.mark.parametrize("group", [1, 2])
def test_equals_einsum(group):
    arrays = inputs(group)
    for ours, theirs in zip(
        jax.tree.leaves(gradients("cpu")(*arrays)), jax.tree.leaves(gradients("tpu")(*arrays)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("platform", "copied"), [("cpu", False), ("tpu", True)])
def test_scores_are_not_transposed_in_memory(platform, copied):
    program = gradients(platform).lower(*inputs(1)).compile().as_text()
    assert (max(copied_sizes(program), default=0) >= BATCH * KV_HEADS * Q_LEN * KV_LEN) == copied


def test_keys_are_not_transposed_in_memory_for_a_step_of_decoding():
    """A cache has heads before positions, and is larger than the scores of one query."""

    def step(q, k, v):
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        weights = jax.nn.softmax(score_products.scores(q, k, platform="cpu"))
        return score_products.averages(weights, v, platform="cpu")

    q, k, v = inputs(1)
    program = jax.jit(step).lower(q[:, :1], k.swapaxes(1, 2), v.swapaxes(1, 2)).compile().as_text()
    assert max(copied_sizes(program), default=0) < k.size


def test_gradient_of_a_bias_that_rows_share():
    bias = np.random.default_rng(0).normal(size=(1, KV_HEADS, 1, Q_LEN, KV_LEN)).astype(np.float32)

    def gradient(platform):
        return jax.grad(lambda x: jnp.sum(jnp.sin(score_products.for_all_rows(x, 3, platform=platform) + bias)))(bias)

    np.testing.assert_allclose(gradient("cpu"), gradient("tpu"), rtol=1e-6)
