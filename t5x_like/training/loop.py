"""The training loop: from the first batch to the last checkpoint. `train` prepares its arguments."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import logging

from t5x_like import metrics
from t5x_like.checkpoints.checkpointer import Checkpointer
from t5x_like.checkpoints.local_checkpoints import LocalTier
from t5x_like.checkpoints.save_timer import SaveTimer
from t5x_like.data.feed import Feed
from t5x_like.errors import RunFailed
from t5x_like.metrics.best import Improvement, flatten
from t5x_like.objectives.variables import Frozen
from t5x_like.runtime import compilation_cache, distributed, protocol
from t5x_like.runtime.preemption import StopRequest
from t5x_like.stored.frozen_base import FrozenBase
from t5x_like.training import debugging, resuming
from t5x_like.training.program import Program
from t5x_like.training.recipe import Periods
from t5x_like.training.runs import run_directory
from t5x_like.training.runs.run_lock import RunLock
from t5x_like.training.state import TrainState, to_evaluate

# Called with a step and metrics by name.
StepCallback = Callable[[int, Mapping[str, float]], None]
_ADVICE = "Lower the learning rate, clip gradients (max_grad_norm), or check the data"


class TrainingFailed(RunFailed):
    """The loss or its gradient stayed non-finite, or was at the last step."""

    exit_code = protocol.LIKELY_TO_REPEAT


@dataclasses.dataclass(frozen=True)
class Reports:
    """Where the loop reports to.

    Attributes:
      metrics: Writes rows to `metrics.jsonl` and the loggers.
      progress: The progress line in the terminal.
      status: The run's `status.json`.
      profile: Traces the steps that `--profile_steps` asks for.
      goodput: Records what the run spends its time on.
      on_log: Called with a step and its row of training metrics.
      on_eval: Called with a step and the metrics of its evaluation, as `metrics.best.flatten` names them.
      on_save: Called with the step of a checkpoint in MODEL_DIR once it is complete.
    """

    metrics: metrics.MetricsWriter
    progress: metrics.Progress
    status: run_directory.Status
    profile: debugging.Profile
    goodput: metrics.GoodputMonitor
    on_log: StepCallback | None = None
    on_eval: StepCallback | None = None
    on_save: Callable[[int], None] | None = None

    def step(self, step: int, row: Mapping[str, float]) -> None:
        """Adds the goodput of the run to the row of `step`, writes it, and prints it."""
        if spent := self.goodput.summary():
            row = {**row, "goodput": spent.fraction}
        self.metrics.write(step, "train", row)
        self.progress.update(step, row)
        if self.on_log is not None:
            self.on_log(step, row)

    def evaluation(self, step: int, results: Mapping[str, Mapping[str, float]]) -> None:
        """Writes a row and prints a line for each evaluation after `step`."""
        for name, values in results.items():
            self.metrics.write(step, name, values)
            self.progress.note(step, values, "evaluation" if len(results) == 1 else name)
        if self.on_eval is not None:
            self.on_eval(step, flatten(results))

    def saved(self, step: int | None) -> None:
        """Reports that the checkpoint of `step`, if it is not None, is complete."""
        if step is not None and self.on_save is not None:
            self.on_save(step)


@dataclasses.dataclass(frozen=True)
class LoopResult:
    """The result of `run`.

    Attributes:
      state: The state after the last step.
      step: The last step.
      stopped_by: The signal that ended the run early, or None.
      evaluation: The metrics of the last evaluation, as `metrics.best.flatten` names them; empty without one.
      finished: Why the run has finished before its last step, or None.
    """

    state: TrainState
    step: int
    stopped_by: str | None
    evaluation: dict[str, float]
    finished: str | None = None


def run(
    program: Program,
    state: TrainState,
    frozen: Frozen,
    feed: Feed,
    *,
    periods: Periods,
    checkpointer: Checkpointer,
    evaluate: Callable[[Any], dict[str, dict[str, float]]] | None,
    improvement: Improvement,
    reports: Reports,
    stop: StopRequest,
    lock: RunLock,
    local: LocalTier | None = None,
    base: FrozenBase | None = None,
    started: float | None = None,
) -> LoopResult:
    """Trains from the step of `state` to the last one, and logs, evaluates and saves on the way.

    A step's metrics are fetched while the next step runs, so that the device does not wait for the host. A state is
    saved only if its last update and its parameters are finite. If the best checkpoints are kept, each evaluation is
    followed by a checkpoint.

    Args:
      program: Its `train_step` is called once per batch.
      state: The state to start from. Its memory is reused.
      frozen: Arrays that are not trained; see `training.step`.
      feed: Yields global batches, starting with the one that follows `state`.
      periods: When to log, evaluate, save and stop.
      checkpointer: Saves the state, with the position of the feed.
      evaluate: Maps parameters to evaluation -> metric -> value; None for no evaluation.
      improvement: Decides from the evaluations whether the run stops early.
      reports: Where metrics, progress and status go.
      stop: Signals and notices of preemption.
      lock: Checked before each step, so that two runs never write to one directory.
      local: How often to save on each host as well.
      base: Frozen parameters that checkpoints do not store.
      started: `time.monotonic()` at the start of the command, to log the time to the first step.

    Returns:
      The `LoopResult`.

    Raises:
      TrainingFailed: The loss or its gradient was not finite for `periods.stop_after_skipped` steps in a row, or at the
        last step.
      RunFailed: The run directory cannot be written to, or another run has taken it over.
      ProcessLost: Another process of the run has ended.
    """
    started = time.monotonic() if started is None else started
    start = step = int(state.step)
    clock = metrics.Throughput(flops_per_step=program.flops, devices=program.partitioner.mesh.devices)
    log = _StepLog(periods, reports, clock, feed, checkpointer)
    timer = SaveTimer(periods.save_seconds, decides=jax.process_index() == 0)
    evaluation: dict[str, float] = {}
    stopped_by, vote, finished, saving, healthy = None, None, None, None, True
    goodput = reports.goodput
    goodput.begin(start)
    reports.status.write("running", step=step)
    while step < periods.total and not stopped_by and not finished:
        # ---- Update ----
        log.begin()
        distributed.heartbeat(f"step {step + 1}", is_step=True)
        lock.check()
        with goodput.phase("data"):
            batch = next(feed)
        debugging.log_first_batch(batch, step == start)
        reports.profile.before_step(step + 1)
        if checkpointer.has_failed:
            stop.request("a checkpoint that cannot be written")
        previous_vote, vote = vote, stop.vote(log.host_seconds, save=timer.is_due())
        with goodput.phase("compile" if step == start else "step"):
            state, pairs = program.train_step(state, frozen, batch)
        step += 1
        reports.status.step = step
        reports.profile.after_step(step, pairs)
        if step == start + 1:
            jax.block_until_ready(state.step)
            stop.defer()
            clock.start(feed.wait_seconds)  # the first step is not measured, because it compiles
            logging.info("first step done %.0f s after the start", time.monotonic() - started)
            compilation_cache.log_use()
        log.add(step, pairs, measured=step > start + 1)
        goodput.step(step)

        # ---- Evaluation and checkpoint ----
        stopped_by, is_due = stop.agreed(previous_vote)
        saves_by_time = timer.saves_at(step, is_due)
        evaluates = evaluate is not None and periods.evaluates_at(step)
        is_last = stopped_by is not None or step == periods.total
        saves_locally = local is not None and not is_last and local.saves_at(step)
        if evaluates or is_last or saves_locally or saves_by_time or periods.saves_at(step, stopping=False):
            healthy = log.flush()
            clock.pause()
            goodput.flush(step)
            if evaluates:
                distributed.heartbeat(f"the evaluation after step {step}")
                with goodput.phase("evaluate"):
                    results = evaluate(to_evaluate(state, frozen))
                reports.evaluation(step, results)
                evaluation = flatten(results)
                finished = _judge(improvement, checkpointer, step, evaluation)
            stopping = stopped_by is not None or finished is not None
            saves = saves_by_time or periods.saves_at(step, stopping) or (evaluates and checkpointer.keep_best > 0)
            saves_locally = saves_locally and not stopping  # the last step of a start is only saved in MODEL_DIR
            # The first checkpoint is always in MODEL_DIR, which is how a start recognizes a run to resume.
            saves = saves or (saves_locally and checkpointer.latest() is None)
            if saves:
                timer.restart(step)
            if (saves or saves_locally) and not healthy:
                _warn_of_skipped_save(step, checkpointer.latest())
            elif saves or saves_locally:
                distributed.heartbeat(f"the checkpoint of step {step}")
                lock.check()
                reports.metrics.flush()  # rows up to this step are on disk before its checkpoint commits
                with goodput.phase("save"):
                    tree = resuming.saved(state, frozen, base)
                    about = run_directory.environment(program.partitioner) | {
                        metrics.rows.DIGEST: reports.metrics.digest()
                    }
                    stored = {"feed": feed.state(), "about": about}
                    if saves_locally:
                        checkpointer.save_locally(step, tree, **stored)
                    if saves:
                        checkpointer.wait()
                        reports.saved(saving)
                        saving = step
                        checkpointer.save(step, tree, **stored, metrics=evaluation if evaluates else None)
                reports.status.write("running", step=step)
            clock.resume(feed.wait_seconds)
    distributed.heartbeat("the last checkpoint")
    with goodput.phase("save"):
        checkpointer.wait()
    reports.saved(saving)
    reports.metrics.flush()
    is_finished = step >= periods.total or finished is not None
    if is_finished and not healthy:
        raise TrainingFailed(_describe_last_step(step, log.skipped_in_a_row, checkpointer.latest()))
    goodput.flush(step, finished=is_finished)
    reports.status.write("finished" if is_finished else "preempted", step=step, reason=finished)
    if spent := goodput.summary():
        logging.info("%s", spent.describe())
    return LoopResult(state, step, None if is_finished else stopped_by, evaluation, finished)


def _warn_of_skipped_save(step: int, newest: int | None) -> None:
    logging.warning(
        "checkpoint %d is not saved, because its last update or its parameters are not finite; %s",
        *(step, _describe_newest(newest)),
    )


def _describe_last_step(step: int, skipped_in_a_row: int, newest: int | None) -> str:
    """Describes why a run that has reached its last step has not finished."""
    if skipped_in_a_row:
        steps = "step" if skipped_in_a_row == 1 else f"{skipped_in_a_row} steps"
        problem = f"the loss or its gradient was not finite in the last {steps}"
    else:
        problem = "the parameters are not finite after the last step"
    return f"{problem} of the run, up to step {step}. {_ADVICE}; {_describe_newest(newest)}"


def _describe_newest(newest: int | None) -> str:
    return "no earlier checkpoint exists" if newest is None else f"the latest checkpoint is {newest}"


def _judge(improvement: Improvement, checkpointer: Checkpointer, step: int, evaluation: dict[str, float]) -> str | None:
    """Adds an evaluation to the history of the best metric, and returns why the run stops, or None."""
    if improvement.patience is None and not checkpointer.keep_best:
        return None  # the evaluations may not have the metric
    improvement.add(step, improvement.metric.value(evaluation))
    return improvement.reason() if improvement.is_exhausted else None


class _StepLog:
    """Logs the metrics of each step while the next one runs."""

    def __init__(
        self,
        periods: Periods,
        reports: Reports,
        clock: metrics.Throughput,
        feed: Feed,
        checkpointer: Checkpointer,
    ):
        self._periods, self._reports, self._clock, self._feed = periods, reports, clock, feed
        self._checkpointer = checkpointer
        self._pending: tuple[int, Any, bool] | None = None
        self._began = self._device_seconds = self.host_seconds = 0.0
        self.skipped_in_a_row = 0  # up to the last step that was flushed

    def begin(self) -> None:
        """Starts to measure `host_seconds`: how long this process takes for a step without waiting for devices."""
        self._began, self._device_seconds = time.monotonic(), 0.0

    def add(self, step: int, pairs: Mapping[str, Any], *, measured: bool) -> None:
        """Takes the metrics of `step`, which may still be computed, and logs the metrics of the step before.

        Args:
          step: The step, counted from 1.
          pairs: Its metrics as `{name: (sum, weight)}`.
          measured: Whether the step counts for throughput.
        """
        self.flush()
        self._pending = (step, pairs, measured)
        self.host_seconds = time.monotonic() - self._began - self._device_seconds

    def flush(self) -> bool:
        """Logs the pending step.

        Returns:
          Whether the state after that step is worth saving: its update and its parameters are finite.
        """
        if self._pending is None:
            return True
        (step, pairs, measured), self._pending = self._pending, None
        before = time.monotonic()
        pairs = jax.device_get(pairs)
        self._device_seconds = time.monotonic() - before
        values = {name: float(total) / max(float(weight), 1e-9) for name, (total, weight) in pairs.items()}
        if measured:
            self._clock.count(values["tokens"], self._feed.wait_seconds)
        self.skipped_in_a_row = skipped_in_a_row = int(values["skipped_in_a_row"])
        if skipped_in_a_row >= self._periods.stop_after_skipped:
            raise TrainingFailed(
                f"the loss or its gradient was not finite for {self._periods.stop_after_skipped} steps in a row, up to "
                f"step {step}. {_ADVICE}; " + _last_healthy(self._checkpointer, last_finite=step - skipped_in_a_row)
            )
        if self._periods.logs_at(step):
            row = {name: value for name, value in values.items() if name not in ("tokens", "skipped_in_a_row")}
            row |= self._clock.rates()
            row |= self._feed.metrics(step)
            self._reports.step(step, row)
        return skipped_in_a_row == 0 and math.isfinite(values["param_norm"])


def _last_healthy(checkpointer: Checkpointer, last_finite: int) -> str:
    """Describes which checkpoint to resume from, and deletes a newer one that would only repeat the failure.

    A checkpoint saved after the step `last_finite` has finite parameters whose loss is not finite. It is kept if it is
    the only one.
    """
    checkpointer.wait()
    steps = checkpointer.steps()
    if not steps:
        return "no checkpoint has been saved yet"
    healthy = max((step for step in steps if step < last_finite), default=None)
    if healthy is None:
        return f"the only checkpoint is {steps[-1]}, and no finite step has followed it"
    if steps[-1] > healthy:
        checkpointer.delete(steps[-1])
    return f"the last healthy checkpoint is {healthy}, which the same command resumes from"
