"""Losses between the distributions of whole texts, which a student samples."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from t5x_like.distillation.loss import ForwardPass
from t5x_like.distillation.losses.logits import BaseLogitLoss
from t5x_like.errors import UserError
from t5x_like.kernels import divergence
from t5x_like.kernels.chunks import PositionLoss, Readout, map_networks


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiniLLM(BaseLogitLoss):
    """The reverse KL divergence KL(student || teacher) of whole texts, by the policy gradient, per position.

    At each position t of a sampled text y, the loss is KL(q_t || p_t) - R_{t+1} log q_t(y_t), where q is the student, p
    the teacher, and R_{t+1}, which has no gradient, the mean of log p(y_s) / q(y_s) over the later positions s. The
    first part is the paper's single-step decomposition, whose gradient is exact; the second one is the effect of a
    token on what follows. Texts are samples (`OnPolicy`) of the student, with temperature 1, or of a mixture with the
    teacher. The loss of a position then has the importance weight q_t(y_t) / (α p_t(y_t) + (1 - α) q_t(y_t)), without
    gradient: the paper's approximation, which leaves out the weights of the tokens before. The released code gives this
    weight to the second part alone. The clipping of the paper is left out, and its loss of pretraining text is another
    run's. The metric is the value of this surrogate, which may be negative.

    Source: Gu et al. 2024 (MiniLLM), arXiv:2306.08543, section 2.2, with length normalization.
    """

    # Whether R is the mean over the later positions, and not their sum, which prefers short texts.
    length_normalization: bool = True
    # α: share of the teacher in the distribution of the samples, as in `OnPolicy.teacher_mix`.
    teacher_mix: float = 0.0

    # The loss is defined for samples of the student alone.
    needs_samples = True

    def position_loss(self, student: ForwardPass, teacher: ForwardPass) -> PositionLoss:
        """Returns the loss for `sum_over_positions`; see `LogitLoss.position_loss`."""
        ours, theirs = student.predictions[self.prediction], teacher.predictions[self.prediction]
        classes = [jax.eval_shape(each.logits, each.hidden).shape[-1] for each in (ours, theirs)]
        if classes[0] != classes[1]:
            raise UserError(
                f"MiniLLM: the student predicts {classes[0]} classes, {teacher.spec.name} predicts {classes[1]}. "
                "Use a teacher with the vocabulary of the student."
            )
        networks = [Readout(each.hidden, each.logits) for each in (ours, theirs)]
        weights = ours.weights.astype(jnp.float32)
        log_ratio = jax.lax.stop_gradient(map_networks(networks, _log_ratio, ours.targets))
        later = self._later(log_ratio * weights, weights)
        if self.teacher_mix:
            weights /= 1.0 - self.teacher_mix + self.teacher_mix * jnp.exp(log_ratio)

        def function(logits, teachers, arrays):
            targets, later, weights = arrays
            log_q, log_p = (jax.nn.log_softmax(x.astype(jnp.float32)) for x in (logits, teachers[0]))
            of_target = jnp.take_along_axis(log_q, targets[..., None], axis=-1)[..., 0]
            return jnp.sum(weights * (divergence.reverse_kl(log_p, log_q) - later * of_target))

        return PositionLoss(function, (ours.targets, later, weights), (networks[1],))

    def _later(
        self, reward: Float[Array, "batch positions"], weights: Float[Array, "batch positions"]
    ) -> Float[Array, "batch positions"]:
        total, number = (jnp.sum(x, axis=1, keepdims=True) - jnp.cumsum(x, axis=1) for x in (reward, weights))
        return total / jnp.maximum(number, 1.0) if self.length_normalization else total


def _log_ratio(logits, targets):
    log_q, log_p = (jax.nn.log_softmax(x.astype(jnp.float32)) for x in logits)
    return jnp.take_along_axis(log_p - log_q, targets[..., None], axis=-1)[..., 0]
