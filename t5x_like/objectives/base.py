"""The interface between training and an objective."""

from collections.abc import Mapping
from typing import Any, Protocol

import jax
from flax import nnx, struct
from jaxtyping import Array, Float

from t5x_like.data.features import FeatureSpec
from t5x_like.optimizers.schedules import Schedule

# Model feature -> array. An array is `[batch, length]` unless the feature says otherwise.
Batch = Mapping[str, Array]
# The model and heads of a run: `{"model": module, "objective": the heads that Objective.init returns}`. With teachers,
# "teachers" has the same of each: `{name: {"model": …, "objective": …}}`.
Params = Mapping[str, Any]
Scalar = Float[Array, ""]


class HeadConfig(Protocol):
    """The fields of a model's configuration that a head needs.

    Attributes:
      embed_dim: size of a hidden state.
      compute_dtype: dtype of activations.
      dropout_rate: dropout rate of the model's blocks.
    """

    embed_dim: int
    dropout_rate: float
    compute_dtype: str


@struct.dataclass
class Terms:
    """Loss terms and metrics of a batch or a microbatch.

    All values are sums, so the sum over microbatches equals the value of the whole batch.

    Attributes:
      sums: term -> loss, summed over the positions or rows that it covers, in nats.
      metrics: metric -> (sum, weight). The value of a metric is sum / weight.
    """

    sums: dict[str, Scalar]
    metrics: dict[str, tuple[Scalar, Scalar]]


class Objective(Protocol):
    """A training objective.

    The loss of a batch is the sum over its terms of coefficient · sum / weight.

    An objective may also define `prepare(params, batch, *, key, step) -> batch`, for batches that depend on the
    parameters, such as text that the model generates. The training step calls it on the global batch, before it
    computes weights and splits the batch into microbatches. Nothing that it computes has a gradient.

    Attributes:
      features: the features that the objective reads.
      coefficients: term -> factor of its normalized loss in the total loss: a number, or a function of the step. Its
        keys are the names of all terms.
      other_names: parameter or part of a head -> name under which pretrained weights may have it instead, both without
        the leading `objective/`. BERT's classifiers begin with the pooler of the next-sentence head.
    """

    features: FeatureSpec
    coefficients: Mapping[str, float | Schedule]
    other_names: Mapping[str, str]

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the heads that this objective owns.

        Args:
          key: random key for the initial values.
          model: the model whose hidden states the heads read.

        Returns:
          Head -> module; empty for an objective without parameters.
        """

    def weights(self, batch: Batch) -> dict[str, Scalar]:
        """Computes the total weight of each term, which depends on the data alone.

        Args:
          batch: the features of a global batch.

        Returns:
          Term -> sum of the weights of its positions or rows.
        """

    def terms(self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None) -> Terms:
        """Runs the model and computes the loss terms.

        Args:
          params: the model and the heads.
          batch: the features of a batch or a microbatch.
          dropout_key: random key for dropout; None disables dropout.

        Returns:
          The terms, with the keys of `coefficients`, and the metrics.
        """

    def loss_and_terms(
        self,
        params: Params,
        batch: Batch,
        factors: Mapping[str, Scalar | float],
        *,
        dropout_key: jax.Array | None = None,
    ) -> tuple[Scalar, Terms]:
        """Runs the model and computes the loss, given the factors of the terms, and the terms.

        Args:
          params: the model and the heads.
          batch: the features of a batch or a microbatch.
          factors: term -> factor of its sum.
          dropout_key: random key for dropout; None disables dropout.

        Returns:
          The sum of factor · sum over all terms, the only result to differentiate, and the terms.
        """

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Runs the model without dropout and predicts the targets.

        Args:
          params: the model and the heads.
          batch: the features of a batch. Features of targets may be missing, unless a prediction is about them.

        Returns:
          Name -> `[batch, …]`. `predictions` `[batch, n]` is what metrics compare with the targets: a label, a score,
          token ids, … The other names are details, such as `probabilities`. Objectives that predict tokens one after
          another return `scores` instead, the log-probabilities of given targets, since their predictions are
          generated (`t5x_like.decoding`).
        """
