"""Feature specs of multiple choice: every choice is a sequence of its own, padded apart from the others."""

import dataclasses
import itertools
from collections.abc import Collection

from t5x_like.data.features import Choices, FeatureSpec, TaskFeature
from t5x_like.errors import UserError


def choice_name(name: str, choice: int) -> str:
    """Returns the task feature of one choice, such as `inputs_0`."""
    return f"{name}_{choice}"


def count_choices(task_features: Collection[str]) -> int:
    """Returns the number of choices of a task: of its features `inputs_0`, `inputs_1`, …; 0 if it has none."""
    return next(number for number in itertools.count() if choice_name("inputs", number) not in task_features)


def choices_of(spec: FeatureSpec) -> int | None:
    """Returns the number of choices per example of a spec; None without choices."""
    return next((len(each.parts) for each in spec.features if isinstance(each.source, Choices)), None)


def with_choices(spec: FeatureSpec, number: int, *, shared: Collection[str] = ("targets",)) -> FeatureSpec:
    """Replaces the task features of a spec by the features of several choices, which are stacked in each model feature.

    A model feature that is made from `inputs` becomes `[batch, choices, length]`, made from `inputs_0`, `inputs_1`, …,
    and `TASK_FEATURE_LENGTHS['inputs']` is the length of each.

    Args:
      spec: Features of one choice.
      number: Number of choices.
      shared: Task features that the choices have in common, such as the label.

    Returns:
      The spec with choices, which is not packable.

    Raises:
      UserError: `number` is not an integer of at least 2, or `spec` already has choices.
    """
    if stacked := [feature.name for feature in spec.features if isinstance(feature.source, Choices)]:
        raise UserError(
            f"{stacked[0]!r} already consists of several sequences per example, so it cannot be read once per choice. "
            "Give a HEAD that reads one sequence."
        )
    if isinstance(number, bool) or not isinstance(number, int) or number < 2:
        raise UserError(
            f"NUM_CHOICES={number!r} is not an integer of at least 2. Give the number of choices per example."
        )

    def numbered(source, choice):
        return choice_name(source, choice) if isinstance(source, str) else tuple(numbered(s, choice) for s in source)

    features = tuple(
        feature
        if set(feature.sources) <= set(shared)
        else dataclasses.replace(feature, source=Choices(tuple(numbered(feature.source, n) for n in range(number))))
        for feature in spec.features
    )
    declared = {feature.name: feature for feature in spec.aligned_features}
    of_one = [declared.get(name) or TaskFeature(name, length_key=name) for name in spec.task_features]
    kept = [feature for feature in of_one if feature.name in shared and feature.name in declared]
    stacked = [
        _of_choice(feature, choice) for choice in range(number) for feature in of_one if feature.name not in shared
    ]
    return dataclasses.replace(spec, features=features, packable=False, aligned_features=(*kept, *stacked))


def _of_choice(feature: TaskFeature, choice: int) -> TaskFeature:
    """Returns the properties of a task feature of one choice, given those without choices."""
    name = choice_name(feature.name, choice)
    if feature.aligned_with is not None:
        return dataclasses.replace(feature, name=name, aligned_with=choice_name(feature.aligned_with, choice))
    return dataclasses.replace(feature, name=name)
