"""The features of a batch that a student and its teachers read."""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxtyping import Array

from t5x_like.data.attached import Attached
from t5x_like.data.features import FeatureSpec
from t5x_like.errors import UserError
from t5x_like.objectives.base import Batch


def merge(
    student: FeatureSpec, teachers: Mapping[str, tuple[FeatureSpec, Sequence[str]]], attached: Sequence[Attached] = ()
) -> FeatureSpec:
    """Adds what the models of teachers read to the features of a student, such as the token types of BERT.

    Args:
      student: The features of the student.
      teachers: Teacher -> features of its objective, and names of those that its model reads. The others are targets.
      attached: Stored predictions of teachers.

    Returns:
      The features of a batch. Rows are packed if the student's are.

    Raises:
      UserError: A teacher reads a feature of the student differently, or one that its rows cannot have.
    """
    found = {feature.name: feature for feature in student.features}
    declared = {feature.name: feature for feature in student.aligned_features}
    for name, (spec, reads) in teachers.items():
        needed = [feature for feature in spec.features if feature.name in reads]
        for feature in needed:
            _check_equal(name, feature.name, found.setdefault(feature.name, feature), feature)
        for task_feature in spec.aligned_features:
            if any(task_feature.name in feature.sources for feature in needed):
                known = declared.setdefault(task_feature.name, task_feature)
                _check_equal(name, task_feature.name, known, task_feature)
        if any(feature.role == "shifted" for feature in needed) and spec.bos_id != student.bos_id:
            raise UserError(
                f"teacher {name!r} reads the token {spec.bos_id} first, the student {student.bos_id}. Give both the "
                "same BOS."
            )
    try:
        return dataclasses.replace(
            student,
            features=tuple(found.values()),
            aligned_features=tuple(declared.values()),
            attached=(*student.attached, *attached),
        )
    except ValueError as error:
        raise UserError(
            f"{' and '.join(map(repr, teachers))}: what teachers read is not in the rows of the student ({error}). "
            "Give teachers that read the features of the student."
        ) from error


def _check_equal(teacher: str, name: str, known: object, other: object) -> None:
    if known != other:
        raise UserError(
            f"teacher {teacher!r} reads {name!r} as {other}, the student as {known}. Train the student with an "
            "objective that makes its inputs as the teacher's does."
        )


def select(batch: Batch, spec: FeatureSpec) -> dict[str, Array]:
    """Returns the features of a batch that a spec declares, so that a model does not read features of another model."""
    names = {feature.name for feature in spec.features}
    return {name: array for name, array in batch.items() if name in names}
