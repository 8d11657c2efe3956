"""The training loop: from the first batch to the last checkpoint. `train` prepares its arguments."""

import dataclasses
import time

import jax
from absl import logging

from t5x_like import metrics
from t5x_like.checkpoints.checkpointer import Checkpointer
from t5x_like.checkpoints.save_timer import SaveTimer
from t5x_like.data.feed import Feed
from t5x_like.metrics.best import flatten
from t5x_like.runtime import compilation_cache, distributed
from t5x_like.training import debugging, resuming
from t5x_like.training.early_stopping import EarlyStopping
from t5x_like.training.evaluation import Evaluations
from t5x_like.training.program import Program
from t5x_like.training.recipe import Recipe
from t5x_like.training.reports import Reports
from t5x_like.training.run_start import Start
from t5x_like.training.runs import run_directory
from t5x_like.training.runs.open_run import OpenRun
from t5x_like.training.save_policy import Decision, SavePolicy
from t5x_like.training.state import TrainState, to_evaluate
from t5x_like.training.step_log import StepLog, describe_newest, failed_at_the_end


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


def run_steps(
    program: Program,
    start: Start,
    feed: Feed,
    *,
    run: OpenRun,
    recipe: Recipe,
    checkpointer: Checkpointer,
    evaluations: Evaluations,
    stopping: EarlyStopping,
    reports: Reports,
) -> LoopResult:
    """Trains from the step of `start` to the last one, and logs, evaluates and saves on the way.

    A step's metrics are fetched while the next step runs, so that the device does not wait for the host; on CPU, before
    the next step (see `StepLog`). A state is saved only if its last update and its parameters are finite. If the best
    checkpoints are kept, each evaluation is followed by a checkpoint.

    Args:
      program: Its `train_step` is called once per batch.
      start: The state to start from, whose memory is reused, and the arrays that are not trained.
      feed: Yields global batches, starting with the one that follows the state.
      run: The run directory. Its lock is checked before each step, so that two runs never write to one directory.
      recipe: Its periods and its storage say when to log, evaluate, save and stop.
      checkpointer: Saves the state, with the position of the feed.
      evaluations: Evaluate the parameters.
      stopping: Decides from the evaluations whether the run stops early.
      reports: Where metrics, progress and status go.

    Returns:
      The `LoopResult`.

    Raises:
      TrainingFailed: The loss or its gradient was not finite for `periods.stop_after_skipped` steps in a row, or at the
        last step.
      RunFailed: The run directory cannot be written to, or another run has taken it over.
      ProcessLost: Another process of the run has ended.
    """
    periods, stop, goodput, status = recipe.periods, run.stop, run.goodput, run.status
    state, frozen, step = start.state, start.frozen, start.step
    clock = metrics.Throughput(flops_per_step=program.flops, devices=program.partitioner.mesh.devices)
    platform = program.partitioner.platform
    log = StepLog(periods, reports, clock, feed, checkpointer, start=start.step, platform=platform)
    timer = SaveTimer(periods.save_seconds, decides=jax.process_index() == 0)
    policy = SavePolicy(
        periods,
        timer,
        checkpointer.latest,
        has_evaluations=bool(evaluations.names),
        keeps_best=checkpointer.keep_best > 0,
        local=recipe.storage.local,
    )
    saver = _Saver(program, start, feed, run, checkpointer, reports)
    evaluation: dict[str, float] = {}
    stopped_by, vote, finished, healthy = None, None, None, True
    goodput.begin(step)
    status.write("running", step=step)
    while step < periods.total and not stopped_by and not finished:
        # ---- Update ----
        log.begin()
        distributed.heartbeat(f"step {step + 1}", is_step=True)
        run.lock.check()
        with goodput.phase("data"):
            batch = next(feed)
        debugging.log_first_batch(batch, step == start.step)
        reports.profile.before_step(step + 1)
        if checkpointer.has_failed:
            stop.request("a checkpoint that cannot be written")
        previous_vote, vote = vote, stop.vote(log.host_seconds, save=timer.is_due())
        with goodput.phase("compile" if step == start.step else "step"):
            state, pairs = program.train_step(state, frozen, batch)
        step += 1
        status.step = step
        reports.profile.after_step(step, pairs)
        if step == start.step + 1:
            jax.block_until_ready(state.step)
            stop.defer()
            clock.start(feed.wait_seconds)  # the first step is not measured, because it compiles
            logging.info("first step done %.0f s after the start", time.monotonic() - run.started)
            compilation_cache.log_use()
        log.add(step, pairs, measured=step > start.step + 1)
        goodput.step(step)

        # ---- Evaluation and checkpoint ----
        stopped_by, is_due = stop.agreed(previous_vote)
        decision = policy.decide(step, stops=stopped_by is not None, is_due=is_due)
        if decision.pauses:
            healthy = log.flush()
            clock.pause()
            goodput.flush(step)
            if decision.evaluates:
                distributed.heartbeat(f"the evaluation after step {step}")
                with goodput.phase("evaluate"):
                    results = evaluations(to_evaluate(state, frozen))
                reports.evaluation(step, results)
                evaluation = flatten(results)
                if finished := _judge(stopping, checkpointer, step, evaluation):
                    decision = policy.decide(step, stops=True, is_due=is_due)
            if decision.saves:
                timer.restart(step)
            if decision.writes and not healthy:
                newest = describe_newest(checkpointer.latest())
                logging.warning(
                    "checkpoint %d is not saved, because its last update or its parameters are not finite; %s",
                    *(step, newest),
                )
            elif decision.writes:
                saver.save(step, state, decision, evaluation)
            clock.resume(feed.wait_seconds)
    distributed.heartbeat("the last checkpoint")
    saver.finish()
    is_finished = step >= periods.total or finished is not None
    if is_finished and not healthy:
        raise failed_at_the_end(step, log.skipped_in_a_row, checkpointer.latest())
    goodput.flush(step, finished=is_finished)
    status.write("finished" if is_finished else "preempted", step=step, reason=finished)
    if spent := goodput.summary():
        logging.info("%s", spent.describe())
    return LoopResult(state, step, None if is_finished else stopped_by, evaluation, finished)


def _judge(stopping: EarlyStopping, checkpointer: Checkpointer, step: int, evaluation: dict[str, float]) -> str | None:
    """Adds an evaluation to the history of the best metric, and returns why the run stops, or None."""
    if stopping.patience is None and not checkpointer.keep_best:
        return None  # the evaluations may not have the metric
    stopping.add(step, stopping.metric.value(evaluation))
    return stopping.reason() if stopping.is_exhausted else None


@dataclasses.dataclass
class _Saver:
    """Saves checkpoints in the background, and reports each one when it is complete.

    Attributes:
      program: The program of the run.
      start: What the run has started from.
      feed: The data, whose position is saved.
      run: The run directory.
      checkpointer: The checkpoints of the run.
      reports: Where complete checkpoints are reported.
      pending: The step of a checkpoint in the run directory that is being written, or None.
    """

    program: Program
    start: Start
    feed: Feed
    run: OpenRun
    checkpointer: Checkpointer
    reports: Reports
    pending: int | None = None

    def save(self, step: int, state: TrainState, decision: Decision, evaluation: dict[str, float]) -> None:
        """Starts to save a checkpoint where `decision` says, with the metrics of the evaluation if it has one."""
        distributed.heartbeat(f"the checkpoint of step {step}")
        self.run.lock.check()
        self.reports.metrics.flush()  # rows up to this step are on disk before its checkpoint commits
        with self.run.goodput.phase("save"):
            tree = resuming.saved(state, self.start.frozen, self.start.base)
            about = run_directory.environment(self.program.partitioner)
            about |= {metrics.rows.DIGEST: self.reports.metrics.digest()}
            stored = {"feed": self.feed.state(), "about": about}
            if decision.saves_locally:
                self.checkpointer.save_locally(step, tree, **stored)
            if decision.saves:
                self._wait()
                self.pending = step
                self.checkpointer.save(step, tree, **stored, metrics=evaluation if decision.evaluates else None)
        self.run.status.write("running", step=step)

    def finish(self) -> None:
        """Waits until all checkpoints and rows of metrics are written."""
        with self.run.goodput.phase("save"):
            self._wait()
        self.reports.metrics.flush()

    def _wait(self) -> None:
        self.checkpointer.wait()
        self.reports.saved(self.pending)
        self.pending = None
