"""Trains a student on the outputs of teachers: the recipe of a student becomes the recipe of its distillation."""

import dataclasses
from collections.abc import Mapping

from t5x_like.data.retokenized import RetokenizedSource
from t5x_like.distillation import retokenizing, served_teachers
from t5x_like.distillation.cached_logits import CachedLogits
from t5x_like.distillation.loss import Loss
from t5x_like.distillation.objective import Distillation
from t5x_like.distillation.on_policy import OnPolicy
from t5x_like.distillation.teachers import Teacher
from t5x_like.errors import UserError
from t5x_like.loading import open_teacher
from t5x_like.optimizers.schedules import Schedule
from t5x_like.training.recipe import Recipe
from t5x_like.training.runs import recipe_vocabulary


def distill(
    student: Recipe,
    *,
    teachers: Mapping[str, Teacher],
    losses: Mapping[str, Loss],
    coefficients: Mapping[str, float | Schedule] | None = None,
    on_policy: OnPolicy | None = None,
    require_weights: bool = True,
) -> Recipe:
    """Returns the recipe that trains a student on the outputs of frozen teachers, which run in the same training step.

    The run directory is like any other: `eval`, `infer` and `convert` read the student from it, without the
    teachers. Evaluations compute the metrics of the student's own objective.

    Args:
      student: The recipe of the student. Its objective is what the student predicts.
      teachers: Name -> teacher.
      losses: Name -> loss between the student and the teachers. Its metrics have the same name.
      coefficients: Loss -> factor, a number or a function of the step; by default 1. `task` is the factor of the loss
        of the student's own objective.
      on_policy: Replaces targets of training batches by samples of the student; None for the targets of the task.
      require_weights: Whether the teachers must have weights. Without them, the recipe can be measured and planned, but
        not trained.

    Returns:
      The recipe.

    Raises:
      UserError: A teacher is missing or does not suit the student, or a loss is not defined for them.
    """
    if not teachers:
        raise UserError("TEACHERS is empty. Give at least one teacher, such as --gin.TEACHER=DIR.")
    student = recipe_vocabulary.with_copy(student)
    own = student.objective
    # Cached logits belong to a checkpoint, which identifies them.
    loaded = {
        name: served_teachers.find(each, student.model, own)
        or open_teacher(each, own, weights=require_weights or each.logits is not None)
        for name, each in teachers.items()
    }
    retokenizers = retokenizing.make(
        student.data,
        own.features,
        teachers=loaded,
        losses=losses,
        lengths={name: each.lengths for name, each in teachers.items()},
    )
    objective = Distillation(
        own,
        losses,
        coefficients=coefficients,
        teachers=loaded,
        cached=CachedLogits.open_all(loaded, own.features),
        vocabulary=student.data.text_vocabulary(own.features).digest if require_weights else None,
        on_policy=on_policy,
        retokenizers=retokenizers,
    )
    objective.check(student.model)
    recipe = dataclasses.replace(student, objective=objective, evaluated=own, teachers=loaded)
    if retokenizers:
        recipe = dataclasses.replace(recipe, data=RetokenizedSource(student.data, retokenizers))
    if objective.cached and require_weights:
        recipe.data.check(objective.features)  # before the rows of another cache have other shapes than the logits
    return recipe
