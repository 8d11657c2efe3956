"""Products with kernels: values and gradients of `jnp.tensordot`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_like.kernels.contraction import contract


@pytest.mark.parametrize(
    ("x_shape", "kernel_shape", "rank"),
    [((2, 3, 4), (4, 5), 1), ((2, 3, 4), (4, 5, 6), 1), ((2, 3, 5, 6), (5, 6, 4), 2)],
)
def test_equals_tensordot(x_shape, kernel_shape, rank):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=x_shape).astype(np.float32), rng.normal(size=kernel_shape).astype(np.float32)

    def loss(product):
        return lambda x, kernel: jnp.sum(jnp.sin(product(x, kernel)))

    found = jax.value_and_grad(loss(lambda x, kernel: contract(x, kernel, rank)), argnums=(0, 1))(x, kernel)
    expected = jax.value_and_grad(loss(lambda x, kernel: jnp.tensordot(x, kernel, axes=rank)), argnums=(0, 1))(
        x, kernel
    )
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
