"""Losses between the distributions that student and teacher predict, in chunks that bound the memory of the logits.

A loss reads one prediction of the objectives, such as `targets` (each target token), `masked_lm` (each masked token),
`all_tokens` (each token, by the masked-LM head) or `sequence_classification` (one label per row). All of them are
averages over the positions whose weight is not 0. They also read a teacher whose logits are stored.
"""

import dataclasses
import functools

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.distillation.loss import ForwardPass, ModelSpec
from t5x_like.errors import UserError
from t5x_like.kernels import divergence
from t5x_like.kernels.chunks import PositionLoss, Readout, sum_over_positions
from t5x_like.kernels.divergence import Divergence
from t5x_like.kernels.top_k import TopK
from t5x_like.objectives.base import Batch, Objective
from t5x_like.objectives.passes import prediction_names
from t5x_like.objectives.prediction import Scalar


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseLogitLoss:
    """Base class of the losses of logits. Implements `Loss`, except for `of_positions`."""

    # The prediction that is compared, which both objectives have.
    prediction: str = "targets"
    # Name of the only teacher that the loss reads; None for all teachers.
    teacher: str | None = None

    def of_positions(self, teacher: Readout | TopK, weights: jax.Array) -> PositionLoss:
        """Returns the loss for `sum_over_positions`.

        Args:
          teacher: The teacher's logits.
          weights: Weights of the positions.
        """
        raise NotImplementedError

    def check(self, student: ModelSpec, teacher: ModelSpec) -> None:
        """Checks that both networks predict the same classes; see `Loss.check`."""
        names = [prediction_names(spec.objective) for spec in (student, teacher)]
        for spec, own in zip((student, teacher), names, strict=True):
            if self.prediction not in own:
                common = ", ".join(name for name in names[0] if name in names[1])
                other = f"a teacher of the student's task, which predicts {' or '.join(names[0])}"
                raise UserError(
                    f"{type(self).__name__}.prediction={self.prediction!r}: the objective of {spec.name} does not "
                    f"predict it, but {', '.join(own)}. Give {common or other}."
                )
        labels = [spec.objective.labels for spec in (student, teacher)]
        if labels[0] != labels[1] and max(map(len, labels)) > 1:  # a single score may have a name or not
            raise UserError(
                f"{type(self).__name__}: student and {teacher.name} predict different labels, {labels[0]} and "
                f"{labels[1]}. Use a teacher with the labels of the student, in the same order."
            )

    def captures(self, student: ModelSpec, teacher: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns no names: the loss reads predictions alone."""
        return (), ()

    def init(self, key: jax.Array, student: ModelSpec, teacher: ModelSpec) -> dict[str, nnx.Module]:
        """Returns no projections."""
        return {}

    def weights(self, rows: Batch, objective: Objective) -> Float[Array, "batch positions"]:
        """Returns the weights of the prediction; see `Loss.weights`."""
        return objective.weights(rows)[self.prediction]

    def position_loss(self, student: ForwardPass, teacher: ForwardPass) -> PositionLoss:
        """Returns the loss for `sum_over_positions`, or with others, `weighted_sum_over_positions`.

        Args:
          student: What the student computed.
          teacher: What the teacher computed.

        Raises:
          UserError: The networks have different numbers of classes.
        """
        ours, theirs = student.predictions[self.prediction], teacher.predictions[self.prediction]
        if not isinstance(theirs, TopK):
            theirs = Readout(theirs.hidden, theirs.logits)
            classes = [jax.eval_shape(each.logits, each.hidden).shape[-1] for each in (ours, theirs)]
            if classes[0] != classes[1]:
                raise UserError(
                    f"{type(self).__name__}: the student predicts {classes[0]} classes of {self.prediction!r}, "
                    f"{teacher.spec.name} predicts {classes[1]}. Use a teacher with the classes of the student."
                )
        return self.of_positions(theirs, ours.weights)

    def __call__(self, heads: dict[str, nnx.Module], student: ForwardPass, teacher: ForwardPass) -> Scalar:
        """Computes the loss by itself; see `Loss`."""
        ours = student.predictions[self.prediction]
        return sum_over_positions(Readout(ours.hidden, ours.logits), self.position_loss(student, teacher))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Divergence(BaseLogitLoss):
    # T: both networks' logits are divided by it before the softmax.
    temperature: float = 1.0

    def __post_init__(self):
        if self.temperature <= 0:
            raise UserError(
                f"{type(self).__name__}.temperature={self.temperature} is not positive. Give a positive number."
            )

    def divergence(self) -> Divergence:
        """Returns the function of the log-probabilities of teacher and student."""
        raise NotImplementedError

    def of_positions(self, teacher: Readout | TopK, weights: jax.Array) -> PositionLoss:
        """Returns the loss for `sum_over_positions`; see `BaseLogitLoss.of_positions`."""
        return divergence.from_teacher(self.divergence(), teacher, weights, temperature=self.temperature)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForwardKL(_Divergence):
    """T² · KL(teacher || student) of the distributions at temperature T, in nats per position.

    Source: Hinton et al. 2015, arXiv:1503.02531, section 2; DistilBERT (Sanh et al. 2019) with T = 2 and the prediction
    `all_tokens`. It differs from the cross-entropy with soft targets by the entropy of the teacher, which does not
    depend on the student.
    """

    def divergence(self) -> Divergence:
        """Returns KL(P || Q)."""
        return divergence.forward_kl


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReverseKL(_Divergence):
    """T² · KL(student || teacher) of the distributions at temperature T, in nats per position.

    Source: Agarwal et al. 2024 (GKD), arXiv:2306.13649, section 2: the reverse KL per token. MiniLLM (Gu et al. 2024,
    arXiv:2306.08543) minimizes it for whole sequences. The student prefers modes of the teacher to its whole support.
    """

    def divergence(self) -> Divergence:
        """Returns KL(Q || P)."""
        return divergence.reverse_kl


@dataclasses.dataclass(frozen=True, kw_only=True)
class JensenShannon(_Divergence):
    """T² times the generalized Jensen-Shannon divergence at temperature T, in nats per position.

    Source: Agarwal et al. 2024 (GKD), arXiv:2306.13649, equation 1, at T = 1, where it is at most log 2 for
    beta = 0.5.
    """

    # Weight of the teacher in the mixture, in (0, 1). Divided by beta, the loss approaches the forward KL for small
    # values; divided by 1 - beta, the reverse KL for values near 1.
    beta: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.beta < 1:
            raise UserError(
                f"JensenShannon.beta={self.beta} is out of range. Give a number between 0 and 1, or use ForwardKL or "
                "ReverseKL."
            )

    def divergence(self) -> Divergence:
        """Returns the divergence with `beta`."""
        return functools.partial(divergence.jensen_shannon, beta=self.beta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GKD(BaseLogitLoss):
    """The generalized Jensen-Shannon divergence with the conventions of the library trl, in nats per position.

    Unlike `JensenShannon`, beta = 0 is KL(teacher || student) and beta = 1 is KL(student || teacher), and both
    softmaxes have temperature 1: GKD's temperature is the one of its samples (`OnPolicy.temperature`).

    Source: Agarwal et al. 2024 (GKD), arXiv:2306.13649, equation 1; `GKDTrainer` of trl 1.16.
    """

    # β: weight of the teacher in the mixture.
    beta: float = 0.5

    def __post_init__(self):
        if not 0 <= self.beta <= 1:
            raise UserError(f"GKD.beta={self.beta} is out of range. Give a number in [0, 1].")

    def of_positions(self, teacher: Readout | TopK, weights: jax.Array) -> PositionLoss:
        """Returns the loss for `sum_over_positions`; see `BaseLogitLoss.of_positions`."""
        return divergence.from_teacher(divergence.generalized(self.beta), teacher, weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftCrossEntropy(_Divergence):
    """T² · cross-entropy of the student with the teacher's probabilities, in nats per position.

    Source: Turc et al. 2019, arXiv:1908.08962, section 2 (T = 1); TinyBERT's prediction layer (Jiao et al. 2020,
    equation 10, T = 1; the released code does not multiply by T²).
    """

    def divergence(self) -> Divergence:
        """Returns the cross-entropy."""
        return divergence.cross_entropy


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogitMSE(BaseLogitLoss):
    """Mean over the classes of (student - teacher)² of the logits, per position.

    Source: Ba and Caruana 2014, arXiv:1312.6184, equation 1, which sums over the classes and divides by 2: with n
    classes its value is n / 2 times this one. For a regression, whose score is the only class, it is the squared error
    (TinyBERT's STS-B).
    """

    def of_positions(self, teacher: Readout | TopK, weights: jax.Array) -> PositionLoss:
        """Returns the loss for `sum_over_positions`; see `BaseLogitLoss.of_positions`."""
        return divergence.mean_squared_error(teacher, weights)
