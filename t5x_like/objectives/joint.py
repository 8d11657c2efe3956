"""Several objectives over one forward pass of the model, such as BERT's pretraining."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
from flax import nnx

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Params, Scalar, Terms
from t5x_like.runtime.recorded import recorded


class Component(Objective, Protocol):
    """An objective that needs one forward pass over the whole batch and can use the outputs of another's."""

    def terms_of(self, params: Params, outputs: Outputs, batch: Batch) -> Terms:
        """Computes the loss terms from the outputs of a forward pass.

        Args:
          params: the model and the heads.
          outputs: result of `params["model"](batch, …)`.
          batch: the features of a batch or a microbatch.

        Returns:
          The terms and metrics, as `terms` returns them.
        """


@recorded
class Joint:
    """The sum of the terms of several objectives that share one forward pass.

    BERT's pretraining is `Joint([MaskedLM(), NextSentence()])`: the mean over masked tokens plus the mean over
    sentence pairs (Devlin et al. 2019, appendix A.2).

    Args:
      objectives: objectives over the same model.
      coefficients: term -> coefficient, which replaces the default of its objective. 0 excludes a term from the
        gradient.

    Raises:
      UserError: `objectives` is empty, two objectives share a term or declare the same feature differently, or a
        coefficient names an unknown term.
    """

    def __init__(self, objectives: Sequence[Component], *, coefficients: Mapping[str, float] | None = None):
        if not objectives:
            raise UserError("Joint.objectives is empty. Give at least one objective.")
        self.objectives = tuple(objectives)
        self.features = merge_features([objective.features for objective in objectives])
        _check_unique("term", [objective.coefficients for objective in objectives])
        defaults = {term: value for objective in objectives for term, value in objective.coefficients.items()}
        if unknown := sorted(set(coefficients or {}) - set(defaults)):
            raise UserError(
                f"Joint.coefficients={dict(coefficients)}: unknown term {unknown[0]!r}. The terms are "
                f"{', '.join(defaults)}."
            )
        self.coefficients = defaults | dict(coefficients or {})

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the heads of all objectives; see `Objective.init`."""
        keys = jax.random.split(key, len(self.objectives))
        return _union("head", [each.init(key, model) for each, key in zip(self.objectives, keys, strict=True)])

    def weights(self, batch: Batch) -> dict[str, Scalar]:
        """Computes the total weight of each term; see `Objective.weights`."""
        return _union("term", [objective.weights(batch) for objective in self.objectives])

    def terms(self, params: Params, batch: Batch, *, dropout_key: jax.Array | None = None) -> Terms:
        """Runs the model once and computes the terms of all objectives; see `Objective.terms`."""
        return self.terms_of(params, params["model"](batch, dropout_key=dropout_key), batch)

    def terms_of(self, params: Params, outputs: Outputs, batch: Batch) -> Terms:
        """Computes the terms of all objectives from a forward pass; see `Component.terms_of`."""
        terms = [objective.terms_of(params, outputs, batch) for objective in self.objectives]
        return Terms(
            sums=_union("term", [each.sums for each in terms]),
            metrics=_union("metric", [each.metrics for each in terms]),
        )


def merge_features(specs: Sequence[FeatureSpec]) -> FeatureSpec:
    """Merges feature specs into one that declares every feature of each.

    Args:
      specs: at least one feature spec.

    Returns:
      The merged spec, packable if all specs are.

    Raises:
      UserError: two specs declare a feature of the same name differently, or have different `bos_id`.
    """
    model_features = dict.fromkeys(feature for spec in specs for feature in spec.features)
    aligned_features = dict.fromkeys(feature for spec in specs for feature in spec.aligned_features)
    for kind, found in (("model feature", model_features), ("task feature", aligned_features)):
        _check_unique(kind, [[feature.name] for feature in found])
    if len({spec.bos_id for spec in specs}) > 1:
        raise UserError(
            f"objectives of Joint have different bos_id {[spec.bos_id for spec in specs]}. Give all the same bos_id."
        )
    return dataclasses.replace(
        specs[0],
        features=tuple(model_features),
        aligned_features=tuple(aligned_features),
        packable=all(spec.packable for spec in specs),
    )


def _union(kind: str, mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    _check_unique(kind, mappings)
    return {name: value for mapping in mappings for name, value in mapping.items()}


def _check_unique(kind: str, groups: Sequence[Sequence[str] | Mapping[str, Any]]) -> None:
    counts = collections.Counter(name for names in groups for name in names)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise UserError(
            f"several objectives of Joint define the {kind} {repeated[0]!r}. Combine objectives whose definitions do "
            "not conflict."
        )
