"""The LAMB of ALBERT's released code, computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_like import optimizers
from t5x_like.optimizers import lamb


class Layer(nnx.Module):
    def __init__(self, kernel, bias):
        self.kernel = nnx.Param(jnp.asarray(kernel), axes=("embed", "mlp"))
        self.bias = nnx.Param(jnp.asarray(bias), axes=("mlp",))


def test_three_updates_equal_the_published_formula():
    rng = np.random.default_rng(0)
    values = {"kernel": rng.normal(size=(4, 3)).astype(np.float32), "bias": rng.normal(size=3).astype(np.float32)}
    params = {"model": Layer(**values)}
    optimizer = optimizers.from_optax(lamb.albert_lamb(weight_decay=0.1), learning_rate=0.5)
    state = optimizer.init(params)
    moments = {name: (np.zeros_like(value), np.zeros_like(value)) for name, value in values.items()}
    for step in range(3):
        drawn = {name: rng.normal(size=value.shape).astype(np.float32) for name, value in values.items()}
        updates, state = optimizer.update({"model": Layer(**drawn)}, state, params, step=step)
        params = jax.tree.map(lambda param, update: param + update, params, updates)
        for name, gradient in drawn.items():
            m, v = moments[name]
            moments[name] = m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
            update = m / (np.sqrt(v) + 1e-6)
            if name == "kernel":
                update = update + 0.1 * values[name]
                update = update * np.linalg.norm(values[name]) / np.linalg.norm(update)
            values[name] = values[name] - 0.5 * update
            found = getattr(params["model"], name)[...]
            np.testing.assert_allclose(found, values[name], rtol=2e-5, atol=1e-6, err_msg=name)
