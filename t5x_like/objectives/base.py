"""What an objective returns and what the step expects of it."""

from collections.abc import Mapping
from typing import Any, Protocol

import jax
from flax import struct
from jaxtyping import Array, Float

from t5x_like.data.features import FeatureSpec

Batch = Mapping[str, Array]
Scalar = Float[Array, ""]


@struct.dataclass
class Terms:
    """The loss terms and metrics of a (micro)batch, all sums, so that adding microbatches up is exact.

    Attributes:
      sums: the summed loss of each term.
      metrics: for each metric its (sum, weight); its value is sum / weight.
    """

    sums: dict[str, Scalar]
    metrics: dict[str, tuple[Scalar, Scalar]]


class Objective(Protocol):
    """The interface between the training loop and an objective."""

    features: FeatureSpec
    coefficients: Mapping[str, float]

    def init(self, key: jax.Array, model: Any) -> Any:
        """The parameters of the heads that this objective owns over `model`; `{}` where it owns none."""

    def weights(self, batch: Batch) -> dict[str, Scalar]:
        """The total weight of each term over `batch`; depends on data alone."""

    def terms(self, params: Mapping[str, Any], batch: Batch, *, dropout_key: jax.Array | None) -> Terms:
        """The terms of `batch` under `params` = `{"model": …, "objective": …}`; no dropout without a key."""
