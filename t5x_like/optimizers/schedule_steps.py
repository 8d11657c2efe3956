"""Numbers of steps that may be given as fractions of the run."""

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
