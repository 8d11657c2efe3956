"""Checks of the arguments of schedules."""

import math

from t5x_like.errors import UserError

# A number of steps, or a fraction of the run.
Warmup = int | float


def in_steps(name: str, steps: int | float, total_steps: int | None) -> int:
    """Returns a number of steps that may be given as a fraction of the run, which is rounded down.

    Args:
      name: What the number is, for error messages.
      steps: A number of steps, or a fraction in (0, 1) of `total_steps`.
      total_steps: Number of steps of the run; None if it is unknown.

    Raises:
      UserError: `steps` is negative or not an integer above 1, or `total_steps` is None for a fraction.
    """
    if isinstance(steps, bool) or not isinstance(steps, int | float):
        raise UserError(
            f"{name}={steps!r} is not a number. Give a number of steps, or a fraction between 0 and 1 of TRAIN_STEPS."
        )
    if steps < 0:
        raise UserError(
            f"{name}={steps} is negative. Give 0, a positive integer, or a fraction between 0 and 1 of TRAIN_STEPS."
        )
    if 0 < steps < 1:
        if total_steps is None:
            raise UserError(
                f"{name}={steps} is a fraction of the run, but total_steps beside it is not set. Give a number of "
                "steps, or set total_steps = %TRAIN_STEPS in a gin file."
            )
        return int(steps * total_steps)
    if not float(steps).is_integer():
        raise UserError(
            f"{name}={steps} is neither a number of steps nor a fraction. Give an integer, or a fraction between 0 and "
            "1 of TRAIN_STEPS."
        )
    return int(steps)


def check_learning_rate(value: float) -> None:
    """Checks a learning rate.

    Raises:
      UserError: It is negative or not finite.
    """
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"LEARNING_RATE={value} is not a positive number. Give a positive number, or 0.")


def check_bounds(peak: float, floor: float) -> None:
    """Checks the largest and the smallest learning rate.

    Raises:
      UserError: `peak` is negative or not finite, or `floor` is not between 0 and `peak`.
    """
    check_learning_rate(peak)
    if not 0.0 <= floor <= peak:
        raise UserError(f"floor={floor} is not between 0 and the learning rate {peak}. Give 0, or a smaller floor.")


def check_span(warmup_steps: int, total_steps: int) -> None:
    """Checks that a schedule has steps after its warmup.

    Raises:
      UserError: `total_steps` is not positive, or the warmup lasts until `total_steps`.
    """
    if total_steps < 1:
        raise UserError(f"TRAIN_STEPS={total_steps} is not positive. Give a positive integer.")
    if warmup_steps >= total_steps:
        raise UserError(
            f"WARMUP_STEPS={warmup_steps} is not less than TRAIN_STEPS={total_steps}. Give fewer steps, such as 0.1 "
            "for a tenth of the run, or use a schedule without decay (constant, rsqrt)."
        )
