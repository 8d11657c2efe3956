"""Several objectives over one forward pass of the model, such as BERT's pretraining."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.models.base import ModelConfig
from t5x_like.models.networks import NetworkSpec
from t5x_like.models.outputs import Outputs
from t5x_like.objectives.base import Batch, Objective, Params, Pass
from t5x_like.objectives.keys import NO_KEYS, Keys
from t5x_like.recorded import recorded


class SeveralObjectives(Objective):
    """The features, terms, heads and networks of several objectives. A subclass defines how they run.

    Args:
      objectives: The objectives.

    Raises:
      UserError: Two objectives define the same term or head, or declare the same feature differently.
    """

    def __init__(self, objectives: Sequence[Objective]):
        self.objectives = tuple(objectives)
        self.features = merge_features([each.features for each in self.objectives])
        self.coefficients = union("term", [each.coefficients for each in self.objectives])
        self.other_names = union("head", [each.other_names for each in self.objectives])

    @property
    def draws(self) -> bool:
        """Whether an objective draws random values for rows."""
        return any(each.draws for each in self.objectives)

    def networks(self, config: ModelConfig) -> dict[str, NetworkSpec]:
        """Returns the networks of all objectives; see `Objective.networks`."""
        return united_networks(self.objectives, config)

    def init(self, key: jax.Array, model: nnx.Module) -> dict[str, Any]:
        """Initializes the heads of all objectives; see `Objective.init`."""
        keys = jax.random.split(key, len(self.objectives))
        return union("head", [each.init(key, model) for each, key in zip(self.objectives, keys, strict=True)])

    def weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the predictions of all objectives; see `Objective.weights`."""
        return union("prediction", [each.weights(rows) for each in self.objectives])

    def target_weights(self, rows: Batch) -> dict[str, Float[Array, "batch positions"]]:
        """Returns the weights of the terms of all objectives; see `Objective.target_weights`."""
        return union("prediction", [each.target_weights(rows) for each in self.objectives])


@recorded
class Joint(SeveralObjectives):
    """The sum of the terms of several objectives that share one forward pass.

    BERT's pretraining is `Joint([MaskedLM(), NextSentence()])`: the mean over masked tokens plus the mean over
    sentence pairs (Devlin et al. 2019, appendix A.2).

    Args:
      objectives: Objectives over the same model.
      coefficients: Term -> coefficient, which replaces the default of its objective. 0 excludes a term from the
        gradient.

    Raises:
      UserError: `objectives` is empty, one of them defines `run`, two define the same term or declare the same
        feature differently, or a coefficient names an unknown term.
    """

    def __init__(self, objectives: Sequence[Objective], *, coefficients: Mapping[str, float] | None = None):
        if not objectives:
            raise UserError("Joint.objectives is empty. Give at least one objective.")
        if own := [each for each in objectives if type(each).run is not Objective.run]:
            raise UserError(
                f"Joint.objectives: {type(own[0]).__name__} defines `run`, but a Joint runs the model once for all "
                "objectives. Train it without the others."
            )
        super().__init__(objectives)
        if unknown := sorted(set(coefficients or {}) - set(self.coefficients)):
            raise UserError(
                f"Joint.coefficients={dict(coefficients)}: unknown term {unknown[0]!r}. The terms are "
                f"{', '.join(self.coefficients)}."
            )
        self.coefficients |= dict(coefficients or {})

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the first objective, which is the main task; empty if it has none."""
        return self.objectives[0].labels

    @property
    def _with_head(self) -> Objective | None:
        """The first objective with the head of a downstream task."""
        return next((each for each in self.objectives if each.head_form is not None), None)

    @property
    def head_form(self) -> Any:
        """The form of the head of a downstream task that an objective has."""
        return None if self._with_head is None else self._with_head.head_form

    @property
    def predicts(self) -> str:
        """What this head predicts."""
        return Objective.predicts if self._with_head is None else self._with_head.predicts

    @property
    def prepare(self) -> Callable[..., Batch] | None:
        """Prepares a batch for one objective after the other; None if none needs it. See `Objective`."""
        if all(objective.prepare is None for objective in self.objectives):
            return None

        def prepare(params: Params, batch: Batch, *, key: jax.Array | None, step: Any) -> Batch:
            for number, objective in enumerate(self.objectives):
                if objective.prepare is not None:
                    own = None if key is None else jax.random.fold_in(key, number)
                    batch = objective.prepare(params, batch, key=own, step=step)
            return batch

        return prepare

    def read(self, params: Params, outputs: Outputs, rows: Batch, *, keys: Keys = NO_KEYS) -> Pass:
        """Unites what the outputs mean to all objectives; see `Objective.read`."""
        found = [
            objective.read(params, outputs, rows, keys=each)
            for objective, each in zip(self.objectives, keys.split(len(self.objectives)), strict=True)
        ]
        check_unique("metric", [each.metric_names() for each in found])
        return Pass(
            rows,
            outputs,
            predictions=union("prediction", [each.predictions for each in found]),
            sums=union("term", [each.sums for each in found]),
            metrics=union("metric", [each.metrics for each in found]),
            next_stage_features=union("handed feature", [each.next_stage_features for each in found]),
        )

    def predict(self, found: Pass) -> dict[str, Array]:
        """Predicts the targets of all objectives from a forward pass.

        Returns:
          The predictions of the first objective, the main task, under their own names. The names of each further
          objective begin with its first term: `next_sentence/predictions`.
        """
        predicted: dict[str, Array] = {}
        for number, objective in enumerate(self.objectives):
            prefix = f"{next(iter(objective.coefficients))}/" if number else ""
            predicted |= {prefix + name: array for name, array in objective.predict(found).items()}
        return predicted


def united_networks(objectives: Sequence[Objective], config: ModelConfig) -> dict[str, NetworkSpec]:
    """Returns the networks of several objectives by name. Several objectives may declare the same network.

    Args:
      objectives: The objectives.
      config: Configuration of the model.

    Raises:
      UserError: Two objectives declare networks of one name that differ.
    """
    found: dict[str, NetworkSpec] = {}
    for objective in objectives:
        for name, spec in objective.networks(config).items():
            if found.setdefault(name, spec) != spec:
                raise UserError(f"several objectives declare the network {name!r} differently. Declare it equally.")
    return found


def merge_features(specs: Sequence[FeatureSpec]) -> FeatureSpec:
    """Merges feature specs into one that declares every feature of each.

    Args:
      specs: At least one feature spec.

    Returns:
      The merged spec, packable if all specs are.

    Raises:
      UserError: Two specs declare a feature of the same name differently, or have different `bos_id`.
    """
    model_features = dict.fromkeys(feature for spec in specs for feature in spec.features)
    aligned_features = dict.fromkeys(feature for spec in specs for feature in spec.aligned_features)
    attached = dict.fromkeys(each for spec in specs for each in spec.attached)
    named = (("model feature", model_features), ("task feature", aligned_features), ("attached array", attached))
    for kind, found in named:
        check_unique(kind, [[feature.name] for feature in found])
    if len({spec.bos_id for spec in specs}) > 1:
        raise UserError(
            f"objectives of one step have different bos_id {[spec.bos_id for spec in specs]}. Give all the same bos_id."
        )
    return dataclasses.replace(
        specs[0],
        features=tuple(model_features),
        aligned_features=tuple(aligned_features),
        packable=all(spec.packable for spec in specs),
        attached=tuple(attached),
    )


def union(kind: str, mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the union of what several objectives define; see `check_unique`."""
    check_unique(kind, mappings)
    return {name: value for mapping in mappings for name, value in mapping.items()}


def check_unique(kind: str, groups: Sequence[Iterable[str]]) -> None:
    """Checks that no two objectives define a thing of the same name.

    Args:
      kind: What is defined, for messages: `term`, `head`, ….
      groups: The names that each objective defines.

    Raises:
      UserError: Two objectives define the same name.
    """
    counts = collections.Counter(name for names in groups for name in names)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise UserError(
            f"several objectives define the {kind} {repeated[0]!r}. Combine objectives whose definitions do "
            "not conflict."
        )
