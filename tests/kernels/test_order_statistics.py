"""The k-th largest element without a sort."""

import jax
import numpy as np
import pytest

from t5x_like.kernels.order_statistics import kth_largest
from t5x_like.partitioning import Partitioner


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_equals_a_sort(scale):
    x = (np.random.default_rng(0).normal(size=(7, 11)) * scale).astype(np.float32)
    x[0, :4], x[1, :2], x[2, 0], x[2, 1] = 0, -0.0, np.inf, -np.inf
    x[3, :3] = x[4, 0]  # equal elements
    found = jax.jit(jax.vmap(lambda k: kth_largest(x, k)))(np.arange(1, x.size + 1))
    np.testing.assert_array_equal(found, np.sort(x.ravel())[::-1])


def test_a_sharded_array_has_the_same_result_and_is_not_gathered():
    x = np.random.default_rng(1).normal(size=(64, 32)).astype(np.float32)
    partitioner = Partitioner(rules="fsdp_tp", ici={"fsdp": 4, "tensor": 2})
    placed = jax.device_put(x, jax.NamedSharding(partitioner.mesh, jax.P("fsdp", "tensor")))
    function = jax.jit(kth_largest)
    assert function(placed, 100) == np.sort(x.ravel())[-100]
    assert "all-gather" not in function.lower(placed, 100).compile().as_text()
