"""Several objectives over one run of the network: BERT's pretraining, and what combines like it."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Scalar, Terms
from t5x_like.runtime.recorded import recorded


class Component(Objective, Protocol):
    """An objective that runs the network just once, on the whole batch, and can be told of the result instead."""

    def terms_of(self, params: Mapping[str, Any], outputs: Outputs, batch: Batch) -> Terms:
        """`terms`, where the network has been run already."""


@recorded
class Joint:
    """The sum of several objectives' terms, the network being run once.

    BERT's pretraining is `Joint([MaskedLM(), NextSentence()])`: the mean over masked tokens plus the mean over pairs
    (Devlin et al. 2019, appendix A.2).
    """

    def __init__(self, objectives: Sequence[Component], *, coefficients: Mapping[str, float] | None = None):
        """Args:
        objectives: objectives over one network.
        coefficients: of terms by name, where they are not the parts' own; 0 leaves a term out of the gradient.

        Raises:
          UserError: there are no parts, parts share a term or read the same feature differently, or a coefficient is
            of no term.
        """
        if not objectives:
            raise UserError("a joint objective needs at least one part")
        self.objectives = tuple(objectives)
        self.features = merge_features([part.features for part in objectives])
        terms = collections.Counter(name for part in objectives for name in part.coefficients)
        _refuse_repeated("term", terms)
        own = {name: value for part in objectives for name, value in part.coefficients.items()}
        if unknown := sorted(set(coefficients or {}) - set(own)):
            raise UserError(f"coefficients={dict(coefficients)} names {unknown[0]!r}; terms are {', '.join(own)}")
        self.coefficients = own | dict(coefficients or {})

    def init(self, key: jax.Array, model: Any) -> dict[str, Any]:
        """The parts' heads, by their names."""
        keys = jax.random.split(key, len(self.objectives))
        return _union("head", [part.init(key, model) for part, key in zip(self.objectives, keys, strict=True)])

    def weights(self, batch: Batch) -> dict[str, Scalar]:
        return _union("term", [part.weights(batch) for part in self.objectives])

    def terms(self, params: Mapping[str, Any], batch: Batch, *, dropout_key: jax.Array | None = None) -> Terms:
        return self.terms_of(params, params["model"](batch, dropout_key=dropout_key), batch)

    def terms_of(self, params: Mapping[str, Any], outputs: Outputs, batch: Batch) -> Terms:
        """The parts' terms and metrics where the network has been run, as `outputs`."""
        terms = [part.terms_of(params, outputs, batch) for part in self.objectives]
        return Terms(
            sums=_union("term", [each.sums for each in terms]),
            metrics=_union("metric", [each.metrics for each in terms]),
        )


def merge_features(specs: Sequence[FeatureSpec]) -> FeatureSpec:
    """What reads all that each spec reads, packable where all of them are.

    Raises:
      UserError: two specs declare a feature of one name in different ways, or shift in different BOS.
    """
    model_features = dict.fromkeys(feature for spec in specs for feature in spec.features)
    extraordinary = dict.fromkeys(feature for spec in specs for feature in spec.extraordinary)
    for kind, found in (("model feature", model_features), ("task feature", extraordinary)):
        _refuse_repeated(kind, collections.Counter(feature.name for feature in found))
    if len({spec.bos_id for spec in specs}) > 1:
        raise UserError(f"the parts' inputs begin with different bos_id: {[spec.bos_id for spec in specs]}")
    return dataclasses.replace(
        specs[0],
        features=tuple(model_features),
        extraordinary=tuple(extraordinary),
        packable=all(spec.packable for spec in specs),
    )


def _union(kind: str, mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    _refuse_repeated(kind, collections.Counter(name for mapping in mappings for name in mapping))
    return {name: value for mapping in mappings for name, value in mapping.items()}


def _refuse_repeated(kind: str, names: collections.Counter) -> None:
    if repeated := [name for name, times in names.items() if times > 1]:
        raise UserError(f"parts of a joint objective disagree over, or share, the {kind} {repeated[0]!r}")
