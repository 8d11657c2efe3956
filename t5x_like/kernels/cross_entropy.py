"""Cross-entropy and log-probabilities from hidden states, in chunks that bound the memory of the logits."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from t5x_like import partitioning
from t5x_like.kernels.chunks import PositionLoss, Readout, Scalar, map_positions, sum_over_positions

_LANES = 64  # sums that `_sum` computes beside one another


@struct.dataclass
class CrossEntropy:
    """Weighted sums over all positions, in float32. Losses are in nats. Only `total` has a gradient.

    Attributes:
      total: The training loss: smoothed cross-entropy minus its minimum, plus the z-loss; with `dynamic`, times the
        probability of each target.
      nll: Negative log-likelihood of the targets, without smoothing and z-loss.
      z_loss: The z-loss, which `total` includes.
      correct: Number of positions whose most probable token is the target.
      weight: Sum of the weights.
    """

    total: Scalar
    nll: Scalar
    z_loss: Scalar
    correct: Scalar
    weight: Scalar


@struct.dataclass
class TargetProbabilities:
    """Probabilities of the targets, without weights.

    Attributes:
      log_probability: Log-probability of the target at each position, in nats, float32.
      most_probable: Whether the target is the most probable token, the first one of equal tokens.
      entropy: Entropy of the distribution at each position, in nats, without gradient; None if it is not computed.
    """

    log_probability: Float[Array, "batch length"]
    most_probable: Bool[Array, "batch length"]
    entropy: Float[Array, "batch length"] | None = None


def from_logits(
    logits: Float[Array, "batch length vocab"],
    targets: Int[Array, "batch length"],
    weights: Float[Array, "batch length"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    dynamic: bool = False,
) -> CrossEntropy:
    """Computes the cross-entropy of logits that are held in memory.

    With Z = Σ exp(logits), the z-loss of a position is `z_loss · log(Z)²`. It multiplies the softmax in the gradient by
    `1 + 2 · z_loss · log(Z)`. Label smoothing s gives the target the probability `1 - s` and every other token
    `s / (vocab - 1)`. The entropy of this distribution is subtracted, so the minimum of the loss is 0 (T5X,
    `losses.py`).

    Args:
      logits: Unnormalized log-probabilities.
      targets: Token ids.
      weights: Weight of each position; 0 excludes the position.
      z_loss: Factor of the z-loss.
      label_smoothing: S, in [0, 1).
      dynamic: Whether to multiply the loss of a position by the probability of its target, which has no gradient
        (Wu et al. 2025, arXiv:2508.05629, equation 9).

    Returns:
      Weighted sums over all positions.
    """
    logits, weights = logits.astype(jnp.float32), weights.astype(jnp.float32)
    vocab = logits.shape[-1]
    log_z, target_logit, correct = _at_targets(logits, targets)
    nll = log_z - target_logit
    total = nll
    if label_smoothing and vocab > 1:
        other = label_smoothing / (vocab - 1)
        confidence = 1.0 - label_smoothing
        minimum = -(confidence * math.log(confidence) + label_smoothing * math.log(other))
        total = (confidence - other) * nll + other * (vocab * log_z - jnp.sum(logits, axis=-1)) - minimum
    z_term = z_loss * jnp.square(log_z)
    trained = total + z_term
    if dynamic:
        trained *= jax.lax.stop_gradient(jnp.exp(-nll))
    return CrossEntropy(
        total=jnp.sum(trained * weights),
        nll=jnp.sum(nll * weights),
        z_loss=jnp.sum(z_term * weights),
        correct=jnp.sum(correct * weights),
        weight=jnp.sum(weights),
    )


def _at_targets(
    logits: Float[Array, "batch length vocab"], targets: Int[Array, "batch length"]
) -> tuple[Float[Array, "batch length"], Float[Array, "batch length"], Bool[Array, "batch length"]]:
    """Returns log(Z), the logit of the target, and whether the target is the most probable token."""
    log_z, target_logit, largest = _normalizer_and_target(logits, targets)
    logits, largest = jax.lax.stop_gradient((logits, largest))
    # As by argmax, the first of equal logits is predicted.
    earlier = (logits == largest[..., None]) & (_ids(logits) < targets[..., None])
    return log_z, target_logit, (target_logit == largest) & ~jnp.any(earlier, axis=-1)


def _entropy(
    logits: Float[Array, "batch length vocab"], log_z: Float[Array, "batch length"]
) -> Float[Array, "batch length"]:
    log_p = logits - log_z[..., None]
    p = jnp.exp(log_p)
    return -jnp.sum(jnp.where(p > 0, p * log_p, 0.0), axis=-1)


def _ids(logits: Float[Array, "batch length vocab"]) -> Int[Array, " vocab"]:
    return jnp.arange(logits.shape[-1], dtype=jnp.int32)


@jax.custom_vjp
def _normalizer_and_target(
    logits: Float[Array, "batch length vocab"], targets: Int[Array, "batch length"]
) -> tuple[Float[Array, "batch length"], Float[Array, "batch length"], Float[Array, "batch length"]]:
    """Returns log(Z), the logit of the target, and the largest logit, which has no gradient.

    The gradient needs the logits and log(Z) only. JAX would derive one that saves all exponentials too.
    """
    largest = jnp.max(logits, axis=-1)
    log_z = jnp.log(_sum(jnp.exp(logits - largest[..., None]))) + largest
    if _is_whole_on_cpu():
        target_logit = jnp.take_along_axis(logits, targets[..., None], axis=-1, mode="fill", fill_value=0.0)[..., 0]
    else:
        # A sum instead of a gather: where the vocabulary is sharded, it stays local to each device. Accelerators
        # compute it while they read the logits; XLA on CPU would write an array of their size.
        target_logit = jnp.sum(jnp.where(_ids(logits) == targets[..., None], logits, 0.0), axis=-1)
    return log_z, target_logit, largest


def _sum(x: Float[Array, "batch length vocab"]) -> Float[Array, "batch length"]:
    """Sums over the vocabulary; on CPU in two stages.

    XLA on CPU gives a sum and the functions before it to YNNPACK together, which (jaxlib 0.10) allocates arrays of the
    size of `x` in every call. With two sums, it computes the exponentials of 50,257 tokens itself.
    """
    vocab = x.shape[-1]
    whole = vocab - vocab % _LANES
    if not _is_whole_on_cpu() or whole == 0:
        return jnp.sum(x, axis=-1)
    lanes = jnp.sum(x[..., :whole].reshape(*x.shape[:-1], -1, _LANES), axis=-2)
    sums = jnp.sum(lanes, axis=-1)
    return sums if whole == vocab else sums + jnp.sum(x[..., whole:], axis=-1)


def _is_whole_on_cpu() -> bool:
    """Returns whether the program is for CPUs and the vocabulary is not sharded."""
    return partitioning.bound_platform() == "cpu" and partitioning.axis_size("vocab") == 1


def _forward(logits: Array, targets: Array) -> tuple[Any, Any]:
    log_z, target_logit, largest = _normalizer_and_target(logits, targets)
    return (log_z, target_logit, largest), (logits, targets, log_z)


def _backward(residuals: Any, cotangents: Any) -> tuple[Array, None]:
    logits, targets, log_z = residuals
    d_log_z, d_target, _ = (each[..., None] for each in cotangents)
    probabilities = jnp.exp(logits - log_z[..., None])
    return d_log_z * probabilities + jnp.where(_ids(logits) == targets[..., None], d_target, 0.0), None


_normalizer_and_target.defvjp(_forward, _backward)


def cross_entropy(
    hidden: Float[Array, "batch length embed"],
    unembed: Callable[[Float[Array, "batch length embed"]], Float[Array, "batch length vocab"]],
    targets: Int[Array, "batch length"],
    weights: Float[Array, "batch length"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    dynamic: bool = False,
    budget_bytes: int | None = None,
) -> CrossEntropy:
    """Computes `from_logits(unembed(hidden), …)` in bounded memory.

    The logits are computed in chunks; see `chunks.sum_over_positions`.

    Args:
      hidden: Hidden states that `unembed` reads.
      unembed: Maps hidden states to logits. Parameters in its closure receive gradients.
      targets: Token ids.
      weights: Weight of each position; 0 excludes the position.
      z_loss: See `from_logits`.
      label_smoothing: See `from_logits`.
      dynamic: See `from_logits`.
      budget_bytes: Bytes of float32 logits to hold on a device at a time; None: see `chunks.Chunks.of`.

    Returns:
      Weighted sums over all positions.

    Raises:
      ValueError: Shapes are inconsistent.
    """
    if targets.shape != hidden.shape[:2] or weights.shape != hidden.shape[:2]:
        raise ValueError(
            f"targets {targets.shape} and weights {weights.shape} do not match hidden states {hidden.shape}: expected "
            f"{hidden.shape[:2]}"
        )
    loss = position_loss(targets, weights, z_loss=z_loss, label_smoothing=label_smoothing, dynamic=dynamic)
    return sum_over_positions(Readout(hidden, unembed), loss, budget_bytes=budget_bytes)


def position_loss(
    targets: Int[Array, "batch length"],
    weights: Float[Array, "batch length"],
    *,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    dynamic: bool = False,
) -> PositionLoss:
    """Returns the cross-entropy for `sum_over_positions`, or for `weighted_sum_over_positions` with other losses.

    Args:
      targets: Token ids.
      weights: Weight of each position; 0 excludes the position.
      z_loss: See `from_logits`.
      label_smoothing: See `from_logits`.
      dynamic: See `from_logits`.

    Returns:
      A loss whose sum is a `CrossEntropy`.
    """
    function = functools.partial(from_logits, z_loss=z_loss, label_smoothing=label_smoothing, dynamic=dynamic)
    return PositionLoss(
        lambda logits, teachers, arrays: function(logits, *arrays), (targets, weights), trained=lambda sums: sums.total
    )


def target_probabilities(
    hidden: Float[Array, "batch length embed"],
    unembed: Callable[[Float[Array, "batch length embed"]], Float[Array, "batch length vocab"]],
    targets: Int[Array, "batch length"],
    *,
    entropy: bool = False,
    budget_bytes: int | None = None,
) -> TargetProbabilities:
    """Computes the probability of the target at each position, in chunks like `cross_entropy`.

    Args:
      hidden: Hidden states that `unembed` reads.
      unembed: Maps hidden states to logits.
      targets: Token ids.
      entropy: Whether to compute the entropies.
      budget_bytes: Bytes of float32 logits to hold on a device at a time; None: see `chunks.Chunks.of`.

    Returns:
      The probabilities of all positions.
    """

    def of_chunk(logits, targets):
        logits = logits.astype(jnp.float32)
        log_z, target_logit, correct = _at_targets(logits, targets)
        found = _entropy(*jax.lax.stop_gradient((logits, log_z))) if entropy else None
        return TargetProbabilities(log_probability=target_logit - log_z, most_probable=correct, entropy=found)

    return map_positions(Readout(hidden, unembed), of_chunk, targets, budget_bytes=budget_bytes)
