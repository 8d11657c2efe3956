"""The names of a distillation: of its losses, their coefficients and its teachers."""

import math
from collections.abc import Collection, Mapping

from t5x_like.distillation.loss import Loss
from t5x_like.errors import UserError
from t5x_like.objectives.base import Objective
from t5x_like.optimizers.schedules import Schedule

# Key of the coefficient of the student's own terms.
TASK = "task"
# Name of the teacher that TEACHER names, in gin_configs/runs/distill.gin.
_ONLY_TEACHER = "teacher"


def label(teacher: str) -> str:
    """Returns what a log calls a teacher: `teacher`, or `teacher a` of several.

    Args:
      teacher: Name of the teacher.
    """
    return "teacher" if teacher == _ONLY_TEACHER else f"teacher {teacher}"


def check(
    objective: Objective,
    losses: Mapping[str, Loss],
    teachers: Collection[str],
    cached: Collection[str],
    coefficients: Mapping[str, float | Schedule],
) -> None:
    """Checks that all names are known, that none is used twice, and that each teacher is read.

    Args:
      objective: Objective of the student.
      losses: Name -> loss.
      teachers: Names of the teachers.
      cached: Names of the teachers whose predictions are cached.
      coefficients: Loss or term -> its factor.

    Raises:
      UserError: A name is unknown, reserved or not read, or a factor is not a number, negative or not finite.
    """
    if not losses or not teachers:
        raise UserError(
            f"LOSSES={list(losses)}, TEACHERS={list(teachers)}: a distillation needs both. Give at least "
            "one loss and one teacher."
        )
    if reserved := sorted(losses.keys() & {TASK, *objective.coefficients}):
        raise UserError(f"LOSSES: {reserved[0]!r} is a term of the student already. Rename the loss.")
    known = (TASK, *objective.coefficients, *losses)
    if unknown := sorted(coefficients.keys() - {*known}):
        raise UserError(f"COEFFICIENTS: unknown loss {unknown[0]!r}. The losses are {', '.join(known)}.")
    for name, value in coefficients.items():
        if not callable(value) and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise UserError(
                f"COEFFICIENTS: {value!r} of {name!r} is neither a number nor a schedule. Give a number, such as 0.5."
            )
        if not callable(value) and not 0 <= value < math.inf:  # NaN is neither
            raise UserError(
                f"COEFFICIENTS: {value!r} of {name!r} is negative or not finite. Give 0 or a positive number."
            )
    if unknown := sorted({*cached} - {*teachers}):
        raise UserError(f"cached predictions of {unknown[0]!r}: unknown teacher. Give {', '.join(teachers)}.")
    for name, loss in losses.items():
        if loss.teacher is not None and loss.teacher not in teachers:
            raise UserError(f"loss {name!r}: unknown teacher {loss.teacher!r}. The teachers are {', '.join(teachers)}.")
    read = {name for loss in losses.values() for name in (teachers if loss.teacher is None else (loss.teacher,))}
    if unread := [name for name in teachers if name not in read]:
        raise UserError(f"TEACHERS: no loss reads {unread[0]!r}. Remove it, or give a loss with this teacher.")
