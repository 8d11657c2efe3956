"""Trains the parameters of probes."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array, Float


def fit(
    loss: Callable[..., Array],
    params: Any,
    x: Float[np.ndarray, "layers examples ..."],
    labels: np.ndarray,
    *,
    steps: int,
    seed: int,
    batch_size: int = 512,
) -> Any:
    """Trains parameters by Adam with a rate of 1e-3 on random batches.

    Args:
      loss: `loss(params, x, labels)` of a batch.
      params: Initial values.
      x: Inputs.
      labels: Labels, `[examples, …]`.
      steps: Number of updates.
      seed: Seed of the batches.
      batch_size: Examples per batch.
    """
    optimizer = optax.adam(1e-3)

    @jax.jit
    def train(params: Any, x: Array, labels: Array) -> Any:
        def step(state: Any, key: jax.Array) -> tuple[Any, None]:
            params, moments = state
            chosen = jax.random.randint(key, (min(batch_size, len(labels)),), 0, len(labels))
            gradients = jax.grad(loss)(params, x[:, chosen], labels[chosen])
            updates, moments = optimizer.update(gradients, moments)
            return (optax.apply_updates(params, updates), moments), None

        keys = jax.random.split(jax.random.key(seed + 1), steps)
        return jax.lax.scan(step, (params, optimizer.init(params)), keys)[0][0]

    return train(params, x, labels)
