"""Checks of the arguments of schedules."""

import math

from t5x_like.errors import UserError


def check_learning_rate(value: float) -> None:
    """Checks a learning rate.

    Raises:
      UserError: It is negative or not finite.
    """
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"LEARNING_RATE={value}: negative or not finite. Give a positive number, or 0.")


def check_bounds(peak: float, floor: float) -> None:
    """Checks the largest and the smallest learning rate.

    Raises:
      UserError: `peak` is negative or not finite, or `floor` is not between 0 and `peak`.
    """
    check_learning_rate(peak)
    if not 0.0 <= floor <= peak:
        raise UserError(
            f"FINAL_LEARNING_RATE={floor} is not between 0 and LEARNING_RATE={peak}. Give 0, or a smaller one."
        )


def check_warmup(name: str, warmup_steps: int) -> None:
    """Checks the warmup of a schedule that divides by its number of steps.

    Raises:
      UserError: `warmup_steps` is not positive.
    """
    if warmup_steps < 1:
        raise UserError(f"WARMUP_STEPS={warmup_steps} of {name} is not positive. Give a positive integer.")


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
