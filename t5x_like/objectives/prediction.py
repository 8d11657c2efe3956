"""The distributions that an objective predicts, and the losses of their logits."""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Array, Float, Shaped

from t5x_like.kernels.chunks import PositionLoss
from t5x_like.kernels.cross_entropy import position_loss

Scalar = Float[Array, ""]
# Reads the sum and the weight of a metric from the sums of a `PositionLoss`. The value of the metric is sum / weight.
ReadMetric = Callable[[Any], tuple[Scalar, Scalar]]


@dataclasses.dataclass(frozen=True)
class LogitTerm:
    """What a function of the logits of a prediction adds to a term of the loss.

    Attributes:
      term: Name of the term.
      loss: The function, summed over the positions.
      factor: Factor of its trained sum in the term.
      metrics: Metric -> how to read it. Metrics with the same name are added, so that their value is a mean over all
        positions.
    """

    term: str
    loss: PositionLoss
    factor: float = 1.0
    metrics: Mapping[str, ReadMetric] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The distributions, or the scores, that an objective predicts at some positions of each row.

    A position is whatever a row has one distribution for: a token of a decoder, a masked token, the row itself for a
    label, the question for a choice among several. Logits over a vocabulary are large, so they are described by the
    hidden states and a function instead of an array, which `kernels.chunks` applies to a chunk of positions at a time.
    Objectives with few classes give their logits as `hidden`, with `identity`.

    Attributes:
      hidden: What `logits` reads.
      logits: Maps `hidden`, or some of its positions, to float32 logits. Its closure holds the parameters, which
        receive gradients, and the dropout of the head is already applied to `hidden`. A score that is not a
        distribution, as of a regression, has one class.
      weights: 1 where the objective predicts something, otherwise 0; depends on the data alone. It does not depend on
        the targets: rows without a label count, because a teacher labels them.
      targets: Index of the target class (int32), or the target score (float32); None if there are no targets. An
        unknown target has weight 0 in `target_weights`, and may have any value.
      target_weights: Weights of the loss with respect to `targets`, 0 where a target is unknown; None without targets.
      losses: The losses of the logits: the cross-entropy of the targets, the losses of a distillation.
    """

    hidden: Float[Array, "batch positions embed"]
    logits: Callable[[Float[Array, "batch chunk embed"]], Float[Array, "batch chunk classes"]]
    weights: Float[Array, "batch positions"]
    targets: Shaped[Array, "batch positions"] | None = None
    target_weights: Float[Array, "batch positions"] | None = None
    losses: tuple[LogitTerm, ...] = ()

    def with_loss(self, *losses: LogitTerm) -> "Prediction":
        """Returns the prediction with further losses of its logits."""
        return dataclasses.replace(self, losses=(*self.losses, *losses))

    def with_cross_entropy(
        self,
        term: str,
        metrics: Mapping[str, str],
        *,
        z_loss: float = 0.0,
        label_smoothing: float = 0.0,
        dynamic: bool = False,
    ) -> "Prediction":
        """Returns the prediction with the cross-entropy of its targets as its loss; without targets, itself.

        Args:
          term: Name of the term.
          metrics: Metric -> the field of `CrossEntropy` whose mean over the weighted positions it is.
          z_loss: See `kernels.cross_entropy.from_logits`.
          label_smoothing: See `kernels.cross_entropy.from_logits`.
          dynamic: See `kernels.cross_entropy.from_logits`.
        """
        if self.targets is None:
            return self
        changes = {"z_loss": z_loss, "label_smoothing": label_smoothing, "dynamic": dynamic}
        loss = position_loss(self.targets, self.target_weights, **changes)
        read = {name: operator.attrgetter(field, "weight") for name, field in metrics.items()}
        return self.with_loss(LogitTerm(term, loss, metrics=read))


def identity(logits: Float[Array, "batch positions classes"]) -> Float[Array, "batch positions classes"]:
    """Returns its argument: the function from `hidden` to logits of an objective whose `hidden` are the logits."""
    return logits
