"""Derives `LABELS`, the names of the labels of a classification task or the scores of a regression, from the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from t5x_like.cli.derivations import task
from t5x_like.errors import UserError
from t5x_like.vocabularies import vocabulary_kind

if TYPE_CHECKING:
    from t5x_like.config import Derived, KnownSettings

_TARGETS = "targets"
# The objectives whose targets are real numbers, one for each label.
_REAL_TARGETS = (".SequenceRegression", ".MultiLabelClassification")


def from_task(settings: KnownSettings) -> Derived | None:
    """Derives LABELS if the objective uses them and they are not set, and compares them with the task otherwise.

    Raises:
      UserError: The task has another number of labels than LABELS, or the same labels in another order.
    """
    from t5x_like.config import Derived

    if not settings.users("LABELS") or settings.is_stored("LABELS"):
        return None
    given = settings.value("LABELS")
    try:
        name, labels = _of_data(settings, scores=any(user.endswith(_REAL_TARGETS) for user in settings.users("LABELS")))
    except UserError:
        if given is None:
            raise
        return None  # the command itself reports an invalid task
    if not labels:
        return None
    if isinstance(given, Sequence) and given and tuple(given) != labels:
        _compare(given, name, labels)
    if settings.is_given("LABELS"):
        return None
    return Derived(f"the labels of {name}", f"LABELS = {labels!r}\n")


def _compare(given: Sequence[str], name: str, labels: Sequence[str]) -> None:
    """Raises an error if a task has another number or order of labels."""
    if len(given) != len(labels):
        problem = f"{len(given)} labels, but {name} has {len(labels)}"
    elif sorted(given) == sorted(labels):
        problem = f"not in the order of {name}"
    else:
        return  # other names for the same labels
    raise UserError(f"LABELS={tuple(given)}: {problem}: {tuple(labels)}. Give the labels of the task, or another task.")


def _of_data(settings: KnownSettings, *, scores: bool) -> tuple[str, tuple[str, ...]]:
    """Returns the name of the task, and the names of its labels or scores; empty if it is not known or has none."""
    if (cache := task.cache(settings)) is not None:
        about = cache.manifest.vocabularies.get(_TARGETS, {})
        return cache.name, tuple(about.get("names", ()))
    if (source := task.live(settings)) is None:
        return "", ()
    targets = source.provider.output_features.get(_TARGETS)
    if targets is None or targets.dtype.is_floating != scores:
        return source.name, ()
    return source.name, vocabulary_kind.label_names(targets.vocabulary)
