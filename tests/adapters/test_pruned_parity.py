"""Magnitude and movement pruning equal rewrites of the published formulas in torch, over several updates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from t5x_like.adapters.pruned import MagnitudePruning, MovementPruning
from t5x_like.layers.projections import Projection

pytestmark = pytest.mark.parity

METHODS = {"magnitude": MagnitudePruning, "movement": MovementPruning}
STEPS, RATE, BEGIN, FINAL = 12, 1e-2, 2, 3


def published_density(step, initial, final):
    """Returns the density of a step, as Sanh et al. (2020) schedule it, in float64."""
    if step <= BEGIN:
        return initial
    if step > STEPS - FINAL:
        return final
    return final + (initial - final) * (1 - (step - BEGIN) / (STEPS - FINAL - BEGIN)) ** 3


@pytest.mark.parametrize("method", METHODS)
def test_updates_equal_torch(method):
    import torch

    rng = np.random.default_rng(0)
    kernel, x, y = (rng.normal(size=shape).astype(np.float32) for shape in ((12, 10), (64, 12), (64, 10)))
    settings = METHODS[method](density=0.2, begin=BEGIN, final_steps=FINAL, total_steps=STEPS)
    made = Projection((12,), (10,), axes=("embed", "mlp"), key=jax.random.key(0), init=lambda *_: jnp.asarray(kernel))
    made.adapter = nnx.data(settings.make(made, jax.random.key(0), "projection"))
    optimizer = optax.adam(RATE)

    @jax.jit
    def update(projection, state, step):
        gradients = jax.grad(lambda each: jnp.mean((each(x[None])[0] - y) ** 2))(projection)
        updates, state = optimizer.update(gradients, state)
        projection = jax.tree.map(jnp.add, projection, updates)
        projection.adapter.threshold[...] = projection.adapter.rank(projection.kernel[...], step + 1)
        return projection, state

    weight = torch.tensor(kernel, requires_grad=True)
    scores = torch.zeros_like(weight, requires_grad=True)
    trained = torch.optim.Adam([weight, scores] if method == "movement" else [weight], lr=RATE)
    state = optimizer.init(made)
    for step in range(STEPS):
        with torch.no_grad():
            ranked = (weight.abs() if method == "magnitude" else scores).flatten()
            mask = torch.zeros_like(ranked)
            mask[ranked.argsort(descending=True)[: int(published_density(step, 1.0, 0.2) * len(ranked))]] = 1
            mask = mask.view_as(weight)
        found = np.asarray(made.adapter.mask(made.kernel[...]))
        np.testing.assert_array_equal(found, mask.bool().numpy(), err_msg=f"step {step}")
        # The mask has the value of the comparison and the gradient of the scores.
        through = mask if method == "magnitude" else mask + (scores - scores.detach())
        loss = ((torch.tensor(x) @ (weight * through) - torch.tensor(y)) ** 2).mean()
        trained.zero_grad()
        loss.backward()
        trained.step()
        made, state = update(made, state, step)
        np.testing.assert_allclose(made.kernel[...], weight.detach().numpy(), atol=2e-6)
    assert found.sum() == int(0.2 * found.size)
