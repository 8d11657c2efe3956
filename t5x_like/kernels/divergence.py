"""Divergences between the predictions of a teacher and of a student, in chunks that bound the memory of the logits.

`from_teacher` and `mean_squared_error` return losses for `chunks.sum_over_positions`, which computes the logits of both
networks for a chunk of the positions at a time, and for `chunks.weighted_sum_over_positions`, which adds the
cross-entropy of the targets. P denotes the teacher's distribution and Q the student's.

Of a teacher whose k largest logits of V are stored (`TopK`), a divergence compares k + 1 outcomes: the k classes, and
one of the others. Merging outcomes never increases a forward, reverse or Jensen-Shannon divergence, so the result is a
lower bound. It is exact if k = V, or if the two networks agree on the proportions of the other classes.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from t5x_like.errors import UserError
from t5x_like.kernels.chunks import PositionLoss, Readout, Scalar
from t5x_like.kernels.top_k import TopK

LogProbabilities = Float[Array, "batch length classes"]
PerPosition = Float[Array, "batch length"]
# divergence(log P, log Q) -> nats per position.
Divergence = Callable[[LogProbabilities, LogProbabilities], PerPosition]


def forward_kl(log_p: LogProbabilities, log_q: LogProbabilities) -> PerPosition:
    """Computes KL(P || Q) = Σ P · (log P - log Q), the loss of Hinton et al. 2015 up to the entropy of P.

    Args:
      log_p: Log-probabilities of the teacher; -inf for an impossible outcome.
      log_q: Log-probabilities of the student.

    Returns:
      The divergence of each position, in nats.
    """
    possible = log_p > -jnp.inf
    return jnp.sum(jnp.where(possible, jnp.exp(log_p) * (jnp.where(possible, log_p, 0.0) - log_q), 0.0), axis=-1)


def reverse_kl(log_p: LogProbabilities, log_q: LogProbabilities) -> PerPosition:
    """Computes KL(Q || P), which prefers the modes of P to its whole support (Gu et al. 2024, arXiv:2306.08543).

    Args:
      log_p: Log-probabilities of the teacher.
      log_q: Log-probabilities of the student.

    Returns:
      The divergence of each position, in nats.
    """
    return forward_kl(log_q, log_p)


def jensen_shannon(log_p: LogProbabilities, log_q: LogProbabilities, *, beta: float) -> PerPosition:
    """Computes the generalized Jensen-Shannon divergence β KL(P || M) + (1 - β) KL(Q || M), M = β P + (1 - β) Q.

    Source: Agarwal et al. 2024, arXiv:2306.13649, equation 1. Divided by β it tends to KL(P || Q) for β -> 0, and
    divided by 1 - β to KL(Q || P) for β -> 1.

    Args:
      log_p: Log-probabilities of the teacher.
      log_q: Log-probabilities of the student.
      beta: β, in (0, 1).

    Returns:
      The divergence of each position, in nats.
    """
    log_m = jnp.logaddexp(math.log(beta) + log_p, math.log1p(-beta) + log_q)
    return beta * forward_kl(log_p, log_m) + (1.0 - beta) * forward_kl(log_q, log_m)


def generalized(beta: float) -> Divergence:
    """Returns the divergence of GKD: `jensen_shannon`, and its limits without their factor for β = 0 and 1.

    The library trl defines β = 0 as KL(P || Q) and β = 1 as KL(Q || P), although Agarwal et al. 2024, equation 1, is 0
    for both.

    Args:
      beta: β, in [0, 1].
    """
    if beta == 0:
        return forward_kl
    return reverse_kl if beta == 1 else functools.partial(jensen_shannon, beta=beta)


def cross_entropy(log_p: LogProbabilities, log_q: LogProbabilities) -> PerPosition:
    """Computes the cross-entropy -Σ P · log Q, which has the gradient of KL(P || Q).

    Args:
      log_p: Log-probabilities of the teacher.
      log_q: Log-probabilities of the student.

    Returns:
      The cross-entropy of each position, in nats.
    """
    return -jnp.sum(jnp.where(log_p > -jnp.inf, jnp.exp(log_p) * log_q, 0.0), axis=-1)


def from_teacher(
    divergence: Divergence,
    teacher: Readout | TopK,
    weights: Float[Array, "batch length"],
    *,
    temperature: float = 1.0,
) -> PositionLoss:
    """Returns a divergence between softmax(teacher / T) and softmax(student / T), times T².

    The gradient of a divergence at temperature T is about 1 / T² of that at temperature 1. The factor T² keeps the
    proportion to the other losses (Hinton et al. 2015, section 2).

    Args:
      divergence: `forward_kl`, `reverse_kl`, …
      teacher: The teacher's logits.
      weights: Weight of each position; 0 excludes the position.
      temperature: T.

    Returns:
      A loss whose sum is T² times the weighted sum of the divergence, a float32 scalar.

    Raises:
      UserError: The teacher is a `TopK` of another temperature.
    """

    def weighted_sum(log_p, log_q, weights):
        return temperature**2 * jnp.sum(divergence(log_p, log_q) * weights)

    if isinstance(teacher, TopK):

        def of_top_k(logits, teachers, arrays) -> Scalar:
            teacher, weights = arrays
            _check_temperature(teacher, temperature, logits.shape[-1])
            return weighted_sum(*_outcomes(teacher, logits, temperature), weights)

        return PositionLoss(of_top_k, (jax.lax.stop_gradient(teacher), weights))

    def of_logits(logits, teachers, weights) -> Scalar:
        log_p, log_q = (jax.nn.log_softmax(x.astype(jnp.float32) / temperature) for x in (teachers[0], logits))
        return weighted_sum(log_p, log_q, weights)

    return PositionLoss(of_logits, weights, (teacher,))


def mean_squared_error(teacher: Readout | TopK, weights: Float[Array, "batch length"]) -> PositionLoss:
    """Returns the mean over the classes of (student - teacher)², of logits without a softmax.

    Ba and Caruana 2014, arXiv:1312.6184, equation 1, sum over the classes and divide by 2: with V classes their loss is
    V / 2 times this one.

    Args:
      teacher: The teacher's logits, of all classes.
      weights: Weight of each position; 0 excludes the position.

    Returns:
      A loss whose sum is the weighted sum, a float32 scalar.

    Raises:
      UserError: The teacher is a `TopK` with fewer classes than the student.
    """

    def weighted_sum(teacher, student, weights):
        return jnp.sum(jnp.mean(jnp.square(student - teacher), axis=-1) * weights)

    if isinstance(teacher, TopK):

        def of_top_k(logits, teachers, arrays) -> Scalar:
            teacher, weights = arrays
            if teacher.ids.shape[-1] < logits.shape[-1]:
                raise UserError(
                    f"k={teacher.ids.shape[-1]} cached logits: the mean squared error of logits needs all "
                    f"{logits.shape[-1]} classes. Store all classes, or use a divergence of probabilities."
                )
            return weighted_sum(teacher.values, _at_ids(logits, teacher.ids), weights)

        return PositionLoss(of_top_k, (jax.lax.stop_gradient(teacher), weights))
    return PositionLoss(
        lambda logits, teachers, weights: weighted_sum(teachers[0], logits.astype(jnp.float32), weights),
        weights,
        (teacher,),
    )


def _outcomes(
    teacher: TopK, logits: Float[Array, "batch length vocab"], temperature: float
) -> tuple[LogProbabilities, LogProbabilities]:
    """Returns the log-probabilities of teacher and student of the k classes, and of the tail if there is one."""
    logits = logits.astype(jnp.float32) / temperature
    p, q = teacher.values.astype(jnp.float32) / temperature, _at_ids(logits, teacher.ids)
    if p.shape[-1] < logits.shape[-1]:
        # The tail is summed by itself: 1 minus the sum of the others would lose all digits of a small tail.
        tail = jnp.put_along_axis(logits, teacher.ids, -jnp.inf, axis=-1, inplace=False)
        tails = (teacher.log_tail.astype(jnp.float32), jax.nn.logsumexp(tail, axis=-1))
        p, q = (jnp.concatenate([x, tail[..., None]], axis=-1) for x, tail in zip((p, q), tails, strict=True))
    return jax.nn.log_softmax(p), jax.nn.log_softmax(q)


def _at_ids(logits: Float[Array, "batch length vocab"], ids: Int[Array, "batch length k"]) -> LogProbabilities:
    return jnp.take_along_axis(logits.astype(jnp.float32), ids, axis=-1)


def _check_temperature(teacher: TopK, temperature: float, classes: int) -> None:
    k = teacher.ids.shape[-1]
    if k < classes and temperature != teacher.temperature:
        raise UserError(
            f"temperature={temperature}: the tail of the k={k} cached logits of {classes} classes was summed at "
            f"temperature {teacher.temperature}. Use this temperature, or store the logits of all classes."
        )
