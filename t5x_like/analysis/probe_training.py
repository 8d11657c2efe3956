"""Trains the parameters of probes until they converge."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from scipy import optimize

# The largest element of the gradient at which L-BFGS stops, as in scikit-learn's LogisticRegression.
_LARGEST_GRADIENT = 1e-4
# Adam stops if a round of updates improves the loss by less than this fraction, or after so many rounds.
_LEAST_IMPROVEMENT, _MOST_ROUNDS = 0.01, 20


def fit(loss: Callable[..., Array], params: Any, x: np.ndarray, labels: np.ndarray, *, steps: int) -> Any:
    """Minimizes a smooth loss over all examples by L-BFGS, with a warning if it does not converge.

    Args:
      loss: `loss(params, x, labels)` of all examples.
      params: Initial values.
      x: Inputs.
      labels: Labels, `[examples, …]`.
      steps: Maximum number of updates.
    """
    initial, unflatten = ravel_pytree(params)
    x, labels = jnp.asarray(x), jnp.asarray(labels)
    value_and_gradient = jax.jit(jax.value_and_grad(lambda flat, x, labels: loss(unflatten(flat), x, labels)))

    def compute(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(flat.astype(np.float32), x, labels)
        return float(value), np.asarray(gradient, np.float64)

    options = {"maxiter": steps, "maxfun": 2 * steps + 20, "gtol": _LARGEST_GRADIENT}
    found = optimize.minimize(compute, np.asarray(initial, np.float64), jac=True, method="L-BFGS-B", options=options)
    if found.status == 1:  # the limit of updates, or of evaluations
        logging.warning(
            "PROBE_STEPS=%d: a probe has not converged, with a gradient of %.1g. Give more.",
            steps,
            abs(found.jac).max(),
        )
    return unflatten(jnp.asarray(found.x, jnp.float32))


def fit_in_batches(
    loss: Callable[..., Array],
    params: Any,
    x: Float[np.ndarray, "layers examples ..."],
    labels: np.ndarray,
    *,
    steps: int,
    seed: int,
    batch_size: int,
) -> Any:
    """Trains parameters by Adam with a rate of 1e-3 on random batches, in rounds until the loss stops improving.

    Args:
      loss: `loss(params, x, labels)` of a batch.
      params: Initial values.
      x: Inputs.
      labels: Labels, `[examples, …]`.
      steps: Number of updates of a round.
      seed: Seed of the batches.
      batch_size: Examples per batch.
    """
    optimizer = optax.adam(1e-3)

    @jax.jit
    def train(state: Any, key: jax.Array, x: Array, labels: Array) -> tuple[Any, Array]:
        def step(state: Any, key: jax.Array) -> tuple[Any, Array]:
            params, moments = state
            chosen = jax.random.randint(key, (min(batch_size, len(labels)),), 0, len(labels))
            value, gradients = jax.value_and_grad(loss)(params, x[:, chosen], labels[chosen])
            updates, moments = optimizer.update(gradients, moments)
            return (optax.apply_updates(params, updates), moments), value

        state, values = jax.lax.scan(step, state, jax.random.split(key, steps))
        return state, values.mean()

    state, before = (params, optimizer.init(params)), np.inf
    for number in range(_MOST_ROUNDS):
        state, value = train(state, jax.random.fold_in(jax.random.key(seed + 1), number), x, labels)
        if value > (1 - _LEAST_IMPROVEMENT) * before:
            break
        before = float(value)
    return state[0]
