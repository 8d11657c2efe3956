"""The interface of a loss between a student and a teacher."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.kernels.chunks import PositionLoss
from t5x_like.kernels.top_k import TopK
from t5x_like.models.base import ModelConfig
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective
from t5x_like.objectives.prediction import Prediction, Scalar
from t5x_like.vocabularies.token_bytes import TokenBytes


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """A student or teacher before its parameters exist.

    Attributes:
      name: Name of the teacher, or `student`.
      config: Configuration of the model.
      objective: What it predicts; its `labels` and `coefficients` tell which heads it has.
      vocabulary: Digest of its vocabulary; None if it is unknown, or if no vocabulary belongs to the model.
      tokens: The bytes of its tokens, for losses across tokenizers; None if no such loss reads the model.
    """

    name: str
    config: ModelConfig
    objective: Objective
    vocabulary: str | None = None
    tokens: TokenBytes | None = None


@dataclasses.dataclass(frozen=True)
class ForwardPass:
    """The forward pass of a student or teacher over a microbatch.

    Nothing of a teacher has a gradient, and a teacher has no dropout.

    Attributes:
      spec: The student or teacher.
      outputs: Last hidden states and captured arrays; None for a teacher whose logits are cached.
      batch: The features of the rows that the model read, with a row per choice (`passes.flatten_choices`).
      compute: Computes `predictions`, when a loss reads one: a loss of hidden states does not need the heads.
      model: The model, for losses that read its embeddings; None for a teacher whose logits are cached.
    """

    spec: ModelSpec
    outputs: Outputs | None
    batch: Batch
    compute: Callable[[], Mapping[str, Prediction | TopK]]
    model: Any = None

    @functools.cached_property
    def predictions(self) -> Mapping[str, Prediction | TopK]:
        """Name -> the distributions that the objective predicts, or their largest logits if they are cached."""
        return self.compute()


class Loss(Protocol):
    """A loss between a student and a teacher.

    Its value for a batch is the sum of `__call__(…)` over the microbatches, divided by the sum of `weights` of
    the whole batch, so it does not depend on the number of microbatches and devices. With several teachers it is the
    weighted mean over them, unless `teacher` names one.

    Attributes:
      teacher: Name of the only teacher that the loss reads; None for all.
    """

    teacher: str | None

    def check(self, student: ModelSpec, teacher: ModelSpec) -> None:
        """Checks that the loss is defined for two models: widths, maps of layers, heads and vocabularies.

        Raises:
          UserError: The loss is not defined. The message names the loss and both models.
        """

    def captures(self, student: ModelSpec, teacher: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the names of the arrays that the loss reads from `Outputs.captured` of student and teacher.

        The names are the same for all families, where STACK is `encoder` or `decoder`: `STACK/embedding` (the input of
        the first layer), `STACK/layers/INDEX/hidden`, `STACK/layers/INDEX/attention/WHAT` and, of the decoder of an
        encoder-decoder, `…/self_attention/WHAT` and `…/cross_attention/WHAT`. WHAT is `query`, `key`, `value`, `scores`
        (before the softmax; masked keys have about `kernels.masks.MASK_VALUE`, so `scores > MASK_VALUE / 2` is the
        mask) or `probabilities`. `STACK/output` are the last hidden states. A loss with names for the teacher cannot
        read a cached teacher, whose `ForwardPass.outputs` is None; `Distillation` refuses it.
        """

    def init(self, key: jax.Array, student: ModelSpec, teacher: ModelSpec) -> dict[str, nnx.Module]:
        """Initializes the projections that the loss learns.

        Args:
          key: Random key for the initial values.
          student: The student.
          teacher: The teacher; projections to several teachers are separate.

        Returns:
          Name -> module; empty without projections.
        """

    def weights(self, rows: Batch, objective: Objective) -> Float[Array, "batch positions"]:
        """Computes the weights whose sum the summed loss is divided by, which depend on the data alone.

        Args:
          rows: The features, with a row per choice, as in `ForwardPass.batch`.
          objective: The objective of the student. `objective.weights(rows)` has the weights of its predictions.

        Returns:
          The weights of positions, rows or elements.
        """

    def __call__(self, heads: Mapping[str, nnx.Module], student: ForwardPass, teacher: ForwardPass) -> Scalar:
        """Computes the loss of a microbatch.

        Args:
          heads: The projections that `init` returned.
          student: The forward pass of the student.
          teacher: The forward pass of the teacher over the same rows.

        Returns:
          The loss, summed over the positions, rows or elements of `weights`. Coefficients, and their schedules,
          are applied to it elsewhere.
        """


@runtime_checkable
class LogitLoss(Loss, Protocol):
    """A loss that is a sum over positions of a function of logits.

    In a training step, `Distillation` sums all losses of the same prediction, and the cross-entropy of the student's
    targets, in one pass in which the logits of each model are computed once.

    Attributes:
      prediction: Name of the prediction whose logits the loss reads.
    """

    prediction: str

    def position_loss(self, student: ForwardPass, teacher: ForwardPass) -> PositionLoss:
        """Returns the loss at each position. `__call__` returns its sum over the positions.

        Args:
          student: The forward pass of the student.
          teacher: The forward pass of the teacher over the same rows.
        """
