"""Muon with normalized neurons (NorMuon), composed from optax's transformations."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array
from optax import contrib

from t5x_like.optimizers.base import check_rates
from t5x_like.optimizers.from_optax import hidden_matrices


def normuon(
    *,
    beta: float = 0.95,
    b2: float = 0.95,
    rms: float | None = 0.2,
    adam_b1: float = 0.9,
    adam_b2: float = 0.95,
    adam_eps: float = 1e-8,
    select: Callable[[Mapping[str, Array]], Mapping[str, object]] = hidden_matrices,
) -> optax.GradientTransformation:
    """Returns NorMuon (Li et al. 2025, arXiv:2510.05491) for matrices and Adam for the others, for `from_optax`.

    The momentum of a matrix `[inputs, outputs]` is orthogonalized as in Muon. Each output (neuron) is then divided by
    the root of the moving average of its mean square, and the matrix is scaled back to the norm that it had.

    Args:
      beta: Decay rate of the momentum.
      b2: Decay rate of the mean squares of neurons.
      rms: Root mean square of the updates, with which a matrix shares Adam's learning rate. None: the updates have
        the norm of the orthogonalized matrix, times √max(1, outputs / inputs), as in the authors' code.
      adam_b1: Decay rate of Adam's first moment.
      adam_b2: Decay rate of Adam's second moment.
      adam_eps: Added to the root of Adam's second moment.
      select: Returns the parameters that are matrices of hidden layers: name -> something for them, None for others.

    Raises:
      UserError: A decay rate is not in [0, 1).
    """
    check_rates("normuon", beta=beta, b2=b2, adam_b1=adam_b1, adam_b2=adam_b2)

    def labels(params):
        return {name: "adam" if found is None else "muon" for name, found in select(params).items()}

    def dimensions(updates):
        return jax.tree.map(lambda _: contrib.MuonDimensionNumbers(0, 1), updates)

    momentum = contrib.scale_by_muon(beta=beta, weight_dimension_numbers=dimensions)
    muon = optax.chain(momentum, scale_by_neurons(b2=b2, rms=rms))
    transforms = {"muon": muon, "adam": optax.scale_by_adam(b1=adam_b1, b2=adam_b2, eps=adam_eps)}
    return optax.chain(optax.partition(transforms, labels), optax.scale(-1.0))


def scale_by_neurons(*, b2: float, rms: float | None) -> optax.GradientTransformation:
    """Returns the normalization of `normuon`, whose state is the mean square of each output.

    Args:
      b2: See `normuon`.
      rms: See `normuon`.
    """

    def init(params):
        return jax.tree.map(lambda p: jnp.zeros((1, p.shape[1]), jnp.float32), params)

    def normalize(update, square):
        inputs, outputs = update.shape
        normalized = update / (jnp.sqrt(square) + 1e-10)
        norm = jnp.linalg.norm(update) * max(1.0, outputs / inputs) ** 0.5 if rms is None else rms * update.size**0.5
        return normalized * (norm / (jnp.linalg.norm(normalized) + 1e-10))

    def update(updates, state, params=None):
        squares = jax.tree.map(
            lambda square, u: b2 * square + (1 - b2) * jnp.mean(u**2, axis=0, keepdims=True), state, updates
        )
        return jax.tree.map(normalize, updates, squares), squares

    return optax.GradientTransformation(init, update)
