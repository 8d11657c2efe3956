"""Derives `TRAIN_STEPS` from `BUDGET_HOURS`, the time budget of a batch ramp."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from t5x_like.config import Derived, KnownSettings


def to_steps(settings: KnownSettings) -> Derived | None:
    """Derives TRAIN_STEPS: the steps of a `TimeRamp` until the budget is spent. The user's steps replace them.

    Raises:
      UserError: A number of the budget is out of range.
    """
    from t5x_like.config import Derived

    if settings.is_given("TRAIN_STEPS") or not settings.is_used("BUDGET_HOURS"):
        return None
    names = ("BUDGET_HOURS", "SECONDS_PER_MICROBATCH", "BATCH_RAMP_TIME", "MICROBATCHES")
    hours, seconds, ramp, microbatches = map(settings.value, names)
    if None in (hours, seconds, ramp) or type(microbatches) is not int or microbatches < 1:
        return None  # the check of the configuration reports what is missing
    from t5x_like.training.batch_ramp import TimeRamp

    steps = TimeRamp(hours, seconds, ramp).total_steps(microbatches)
    source = f"BUDGET_HOURS={hours}, SECONDS_PER_MICROBATCH={seconds}, MICROBATCHES={microbatches}"
    return Derived(source, f"TRAIN_STEPS = {steps}\n")
