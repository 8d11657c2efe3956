"""The interface of a loss between a student and a teacher."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import jax
from flax import nnx

from t5x_like.kernels.chunks import PositionLoss
from t5x_like.kernels.top_k import TopK
from t5x_like.models.base import ModelConfig
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Scalar
from t5x_like.objectives.component import Component
from t5x_like.objectives.prediction import Prediction


@dataclasses.dataclass(frozen=True)
class Network:
    """What is known of a student or a teacher before its parameters exist.

    Attributes:
      name: name of the teacher, or `student`.
      config: configuration of the model.
      objective: what it predicts; its `labels` and `coefficients` tell which heads it has.
      vocabulary: digest of its vocabulary; None if it is unknown, or if no vocabulary belongs to the network.
    """

    name: str
    config: ModelConfig
    objective: Component
    vocabulary: str | None = None


@dataclasses.dataclass(frozen=True)
class View:
    """What a network computed from a microbatch.

    Nothing of a teacher has a gradient, and a teacher has no dropout.

    Attributes:
      network: the student or a teacher.
      outputs: last hidden states and captured arrays; None for a teacher whose logits are cached.
      batch: the features of the rows that the model read, with a row per choice (`component.flatten_choices`).
      predictions: name -> the distributions that its objective predicts, or their largest logits if they are cached.
        The names are those of the terms of the objective, and `all_tokens` of a masked language model.
    """

    network: Network
    outputs: Outputs | None
    batch: Batch
    predictions: Mapping[str, Prediction | TopK]


class Deferred(Mapping[str, Prediction | TopK]):
    """Predictions that are computed when one is read: a loss of hidden states does not need those of a head."""

    def __init__(self, compute: Callable[[], Mapping[str, Prediction | TopK]]):
        self._compute, self._found = compute, None

    def _all(self) -> Mapping[str, Prediction | TopK]:
        if self._found is None:
            self._found = self._compute()
        return self._found

    def __getitem__(self, name: str) -> Prediction | TopK:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class Loss(Protocol):
    """A loss between a student and a teacher.

    Its value for a batch is the sum of `__call__(…)` over the microbatches, divided by `weight` of the whole batch,
    so it depends neither on the number of microbatches nor on that of devices. With several teachers it is the weighted
    mean over them, unless `teacher` names one.

    Attributes:
      teacher: name of the only teacher that the loss reads; None for all.
    """

    teacher: str | None

    def check(self, student: Network, teacher: Network) -> None:
        """Checks that the loss is defined for two networks: widths, maps of layers, heads and vocabularies.

        Raises:
          UserError: it is not. The message names the loss and both networks.
        """

    def captures(self, student: Network, teacher: Network) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the names of the arrays that the loss reads from `Outputs.captured` of student and teacher.

        The names are the same for all families, where STACK is `encoder` or `decoder`: `STACK/embedding` (the input of
        the first layer), `STACK/layers/INDEX/hidden`, `STACK/layers/INDEX/attention/WHAT` and, of the decoder of an
        encoder-decoder, `…/self_attention/WHAT` and `…/cross_attention/WHAT`. WHAT is `query`, `key`, `value`, `scores`
        (before the softmax; masked keys have about `kernels.masks.MASK_VALUE`, so `scores > MASK_VALUE / 2` is the
        mask) or `probabilities`. `STACK/output` are the last hidden states. A loss with names for the teacher cannot
        read a cached teacher, whose `View.outputs` is None; `Distillation` refuses it.
        """

    def init(self, key: jax.Array, student: Network, teacher: Network) -> dict[str, nnx.Module]:
        """Initializes the projections that the loss learns.

        Args:
          key: random key for the initial values.
          student: the student.
          teacher: the teacher; projections to several teachers are separate.

        Returns:
          Name -> module; empty without projections.
        """

    def weight(self, batch: Batch, objective: Component) -> Scalar:
        """Computes what the summed loss is divided by, which depends on the data alone.

        Args:
          batch: the features of a global batch, with a row per choice, as in `View.batch`.
          objective: the objective of the student. `objective.prediction_weights(batch)` has the weights of the
            positions of its predictions.

        Returns:
          The number of positions, rows or elements.
        """

    def __call__(self, heads: Mapping[str, nnx.Module], student: View, teacher: View) -> Scalar:
        """Computes the loss of a microbatch.

        Args:
          heads: the projections that `init` returned.
          student: what the student computed.
          teacher: what the teacher computed from the same rows.

        Returns:
          The loss, summed over the positions, rows or elements that `weight` counts. Coefficients, and their schedules,
          are applied to it elsewhere.
        """


@runtime_checkable
class LogitLoss(Loss, Protocol):
    """A loss that is a sum over positions of a function of logits.

    In a training step, `Distillation` sums all losses of the same prediction, and the cross-entropy of the student's
    targets, in one pass in which the logits of each network are computed once.

    Attributes:
      prediction: name of the prediction whose logits the loss reads.
    """

    prediction: str

    def position_loss(self, student: View, teacher: View) -> PositionLoss:
        """Returns the loss, whose sum over the positions is that of `__call__`.

        Args:
          student: what the student computed.
          teacher: what the teacher computed from the same rows.
        """
