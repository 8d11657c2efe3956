"""Several objectives over one forward pass of the model, such as BERT's pretraining."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.kernels.chunks import PositionLoss
from t5x_like.kernels.dropout import split_key
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Params, Scalar, Terms
from t5x_like.objectives.component import Component
from t5x_like.objectives.prediction import Prediction
from t5x_like.runtime.recorded import recorded


@recorded
class Joint(Component):
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
        self.other_names = _union("head", [objective.other_names for objective in objectives])

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the first objective, whose predictions are those of the main task; empty if it has none."""
        return tuple(getattr(self.objectives[0], "labels", ()))

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the heads of all objectives; see `Objective.init`."""
        keys = jax.random.split(key, len(self.objectives))
        return _union("head", [each.init(key, model) for each, key in zip(self.objectives, keys, strict=True)])

    def weights(self, batch: Batch) -> dict[str, Scalar]:
        """Computes the total weight of each term; see `Objective.weights`."""
        return _union("term", [objective.weights(batch) for objective in self.objectives])

    def prediction_weights(self, batch: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the predictions of all objectives; see `Component.prediction_weights`."""
        return _union("prediction", [objective.prediction_weights(batch) for objective in self.objectives])

    def target_weights(self, batch: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the targets of all objectives; see `Component.target_weights`."""
        return _union("prediction", [objective.target_weights(batch) for objective in self.objectives])

    def predictions(
        self, params: Params, outputs: Outputs, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> dict[str, Prediction]:
        """Returns the predictions of all objectives; see `Component.predictions`."""
        keys = split_key(dropout_key, len(self.objectives))
        predictions = [
            objective.predictions(params, outputs, batch, dropout_key=key)
            for objective, key in zip(self.objectives, keys, strict=True)
        ]
        return _union("prediction", predictions)

    def terms_of(
        self, params: Params, outputs: Outputs, batch: Batch, *, dropout_key: jax.Array | None = None
    ) -> Terms:
        """Computes the terms of all objectives from a forward pass; see `Component.terms_of`."""
        keys = split_key(dropout_key, len(self.objectives))
        return _add(
            objective.terms_of(params, outputs, batch, dropout_key=key)
            for objective, key in zip(self.objectives, keys, strict=True)
        )

    def position_losses(self, predictions: Mapping[str, Prediction]) -> dict[str, PositionLoss]:
        """Returns the losses of all objectives; see `Component.position_losses`."""
        return _union("prediction", [objective.position_losses(predictions) for objective in self.objectives])

    def terms_of_sums(
        self,
        sums: Mapping[str, Any],
        params: Params,
        outputs: Outputs,
        batch: Batch,
        *,
        dropout_key: jax.Array | None = None,
    ) -> Terms:
        """Computes the terms of all objectives; see `Component.terms_of_sums`."""
        keys = split_key(dropout_key, len(self.objectives))
        return _add(
            objective.terms_of_sums(sums, params, outputs, batch, dropout_key=key)
            for objective, key in zip(self.objectives, keys, strict=True)
        )

    def predictions_of(self, params: Params, outputs: Outputs, batch: Batch) -> dict[str, Array]:
        """Predicts the targets of all objectives from a forward pass.

        Returns:
          The predictions of the first objective under their own names, so that `predictions` are those of the main
          task. The names of each further objective begin with its first term: `next_sentence/predictions`.
        """
        found: dict[str, Array] = {}
        for number, objective in enumerate(self.objectives):
            prefix = f"{next(iter(objective.coefficients))}/" if number else ""
            predicted = objective.predictions_of(params, outputs, batch)
            found |= {prefix + name: array for name, array in predicted.items()}
        return found


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
    attached = dict.fromkeys(each for spec in specs for each in spec.attached)
    named = (("model feature", model_features), ("task feature", aligned_features), ("attached array", attached))
    for kind, found in named:
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
        attached=tuple(attached),
    )


def _add(terms: Iterable[Terms]) -> Terms:
    terms = list(terms)
    return Terms(
        sums=_union("term", [each.sums for each in terms]),
        metrics=_union("metric", [each.metrics for each in terms]),
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
