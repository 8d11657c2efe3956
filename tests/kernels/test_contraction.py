"""The product with a kernel: JAX's own value and gradients, in the layout that suits CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.kernels.contraction import contract


@pytest.mark.parametrize(
    "x_shape, kernel_shape, rank",
    [((2, 3, 4), (4, 5), 1), ((2, 3, 4), (4, 2, 6), 1), ((2, 3, 2, 6), (2, 6, 4), 2), ((3, 2, 6), (2, 6, 4), 2)],
)
def test_value_and_gradients_are_those_of_tensordot(x_shape, kernel_shape, rank):
    x = jax.random.normal(jax.random.key(0), x_shape)
    kernel = jax.random.normal(jax.random.key(1), kernel_shape)

    def loss(function):
        return lambda x, kernel: jnp.sum(jnp.sin(function(x, kernel)))

    ours = jax.value_and_grad(loss(lambda x, k: contract(x, k, rank)), argnums=(0, 1))(x, kernel)
    theirs = jax.value_and_grad(loss(lambda x, k: jnp.tensordot(x, k, rank)), argnums=(0, 1))(x, kernel)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, theirs)


def test_the_kernels_gradient_needs_no_transposed_copy_of_the_large_one():
    def gradient(x, kernel):
        return jax.grad(lambda kernel: jnp.sum(contract(x, kernel, 1) ** 2))(kernel)

    jaxpr = str(jax.make_jaxpr(gradient)(jnp.ones((2, 8, 4)), jnp.ones((4, 3))))
    assert "transpose" not in jaxpr
