"""Logs the metrics of the steps of a run, and ends a run whose updates stay non-finite."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from t5x_like import metrics
from t5x_like.checkpoints.checkpointer import Checkpointer
from t5x_like.data.feed import Feed
from t5x_like.errors import RunFailed
from t5x_like.runtime import protocol
from t5x_like.training.recipe import Periods
from t5x_like.training.reports import Reports

_ADVICE = "Lower the learning rate, clip gradients (max_grad_norm), or check the data"


class TrainingFailed(RunFailed):
    """The loss or its gradient stayed non-finite, or was at the last step."""

    exit_code = protocol.LIKELY_TO_REPEAT


class StepLog:
    """Logs the metrics of each step while the next one runs, so that the device does not wait for the host.

    A CPU is both. It may compute a step within the call that dispatches it. The last two steps would then be ready at
    the same time, and the last one would seem to take no time. Its steps are logged before the next one is dispatched.

    Args:
      periods: Which steps are logged, and how many non-finite updates in a row end the run.
      reports: Where rows of metrics go.
      clock: Measures throughput.
      feed: The data, whose metrics are part of a row.
      checkpointer: The checkpoints of the run.
      start: The step from which the run starts or resumes.
      platform: Platform of the devices: `cpu`, `gpu` or `tpu`.

    Attributes:
      host_seconds: How long this process has taken for a step without waiting for devices.
      skipped_in_a_row: Number of updates skipped up to the last step that was flushed.
    """

    def __init__(
        self,
        periods: Periods,
        reports: Reports,
        clock: metrics.Throughput,
        feed: Feed,
        checkpointer: Checkpointer,
        *,
        start: int = 0,
        platform: str = "cpu",
    ):
        self._periods, self._reports, self._clock, self._feed = periods, reports, clock, feed
        self._checkpointer, self._start, self._platform = checkpointer, start, platform
        self._pending: tuple[int, Any, bool] | None = None
        self._healthy = True
        self._began = self._device_seconds = self.host_seconds = 0.0
        self.skipped_in_a_row = 0

    def begin(self) -> None:
        """Starts to measure `host_seconds`."""
        self._began, self._device_seconds = time.monotonic(), 0.0

    def add(self, step: int, pairs: Mapping[str, Any], *, measured: bool) -> None:
        """Takes the metrics of `step`, which may still be computed, and logs the step before; on CPU, `step` itself.

        Args:
          step: The step, counted from 1.
          pairs: Its metrics as `{name: (sum, weight)}`.
          measured: Whether the step counts for throughput.

        Raises:
          TrainingFailed: Too many updates in a row were not finite.
        """
        self.flush()
        self._pending = (step, pairs, measured)
        if self._platform == "cpu":
            self.flush()
        self.host_seconds = time.monotonic() - self._began - self._device_seconds

    def flush(self) -> bool:
        """Logs the pending step, if there is one.

        Returns:
          Whether the state after the last step is worth saving: its update and its parameters are finite.

        Raises:
          TrainingFailed: Too many updates in a row were not finite.
        """
        if self._pending is None:
            return self._healthy
        (step, pairs, measured), self._pending = self._pending, None
        before = time.monotonic()
        pairs = jax.device_get(pairs)
        self._device_seconds = time.monotonic() - before
        values = {name: float(total) / max(float(weight), 1e-9) for name, (total, weight) in pairs.items()}
        if measured:
            self._clock.count(values["tokens"], self._feed.wait_seconds, values.get("batch_fraction", 1.0))
        self.skipped_in_a_row = int(values["skipped_in_a_row"])
        self._healthy = self.skipped_in_a_row == 0 and math.isfinite(values["param_norm"])
        if self.skipped_in_a_row >= self._periods.stop_after_skipped:
            raise self._failed(step)
        if self._periods.logs_at(step):
            row = {name: value for name, value in values.items() if name not in ("tokens", "skipped_in_a_row")}
            row |= self._clock.rates()
            row |= self._feed.metrics(step - self._start)
            self._reports.step(step, row)
        return self._healthy

    def _failed(self, step: int) -> TrainingFailed:
        """Returns the error of a run that has diverged, after deleting a checkpoint that would only diverge again."""
        self._checkpointer.wait()
        steps = self._checkpointer.steps()
        healthy = newest_healthy(steps, last_finite=step - self.skipped_in_a_row)
        if healthy is not None and steps[-1] > healthy:
            self._checkpointer.delete(steps[-1])
        return TrainingFailed(
            f"the loss or its gradient was not finite for {self._periods.stop_after_skipped} steps in a row, up to "
            f"step {step}. {_ADVICE}; {_describe_healthy(steps, healthy)}"
        )


def newest_healthy(steps: Sequence[int], last_finite: int) -> int | None:
    """Returns the newest checkpoint that a finite step has followed, or None.

    A checkpoint saved after `last_finite` has finite parameters whose loss is not finite.

    Args:
      steps: The steps of the checkpoints.
      last_finite: The last step whose update was finite.
    """
    return max((step for step in steps if step < last_finite), default=None)


def _describe_healthy(steps: Sequence[int], healthy: int | None) -> str:
    if not steps:
        return "no checkpoint has been saved yet"
    if healthy is None:
        return f"the only checkpoint is {steps[-1]}, and no finite step has followed it"
    return f"the last healthy checkpoint is {healthy}, which the same command resumes from"


def failed_at_the_end(step: int, skipped_in_a_row: int, newest: int | None) -> TrainingFailed:
    """Returns the error of a run that has reached its last step, whose state is not finite.

    Args:
      step: The last step.
      skipped_in_a_row: Number of updates skipped up to it.
      newest: The latest checkpoint, or None.
    """
    if skipped_in_a_row:
        steps = "step" if skipped_in_a_row == 1 else f"{skipped_in_a_row} steps"
        problem = f"the loss or its gradient was not finite in the last {steps}"
    else:
        problem = "the parameters are not finite after the last step"
    return TrainingFailed(f"{problem} of the run, up to step {step}. {_ADVICE}; {describe_newest(newest)}")


def describe_newest(newest: int | None) -> str:
    """Describes which checkpoint is the latest."""
    return "no earlier checkpoint exists" if newest is None else f"the latest checkpoint is {newest}"
