"""The distributions that an objective predicts, which its loss, its predictions and a distillation read."""

import dataclasses
from collections.abc import Callable

from jaxtyping import Array, Float, Shaped


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The distributions, or the scores, that an objective predicts at some positions of each row.

    A position is whatever a row has one distribution for: a token of a decoder, a masked token, the row itself for a
    label, the question for a choice among several. Logits over a vocabulary are large, so they are described by the
    hidden states and a function instead of an array: `kernels.cross_entropy` and `kernels.divergence` apply it to a
    chunk of positions at a time. Objectives with few classes give their logits as `hidden`, with `identity`.

    Attributes:
      hidden: what `logits` reads.
      logits: maps `hidden`, or some of its positions, to float32 logits. Its closure holds the parameters, which
        receive gradients, and the dropout of the head is already applied to `hidden`. A score that is not a
        distribution, as of a regression, has one class.
      weights: 1 where the objective predicts something, otherwise 0; depends on the data alone. It does not depend on
        the targets: rows without a label count, because a teacher labels them.
      targets: index of the target class (int32), or the target score (float32); None if there are no targets. An
        unknown target has weight 0 in `target_weights`, and may have any value.
      target_weights: weights of the loss with respect to `targets`, 0 where a target is unknown; None without targets.
    """

    hidden: Float[Array, "batch positions embed"]
    logits: Callable[[Float[Array, "batch chunk embed"]], Float[Array, "batch chunk classes"]]
    weights: Float[Array, "batch positions"]
    targets: Shaped[Array, "batch positions"] | None = None
    target_weights: Float[Array, "batch positions"] | None = None


def identity(logits: Float[Array, "batch positions classes"]) -> Float[Array, "batch positions classes"]:
    """Returns its argument: the function from `hidden` to logits of an objective whose `hidden` are the logits."""
    return logits
