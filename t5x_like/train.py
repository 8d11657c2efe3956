"""Pretrains, fine-tunes or distills a model. The function `train` reads in the order in which data flows."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
from absl import logging

from t5x_like.checkpoints.checkpointer import Checkpointer
from t5x_like.runtime import console_log, distributed, host_functions
from t5x_like.runtime.background import Background
from t5x_like.training import checks, debugging, early_stopping, export_note, loop, resuming, run_feed, run_start
from t5x_like.training.program import Program, make_program
from t5x_like.training.recipe import Recipe
from t5x_like.training.reports import Callbacks, StepCallback, open_reports
from t5x_like.training.runs import description, open_run, recipe_vocabulary, run_directory, run_log
from t5x_like.training.state import to_evaluate


@dataclasses.dataclass
class TrainResult:
    """The result of `train`.

    Attributes:
      model_dir: The run directory.
      step: The last step.
      params: The parameters after it, or their averages with `Update.ema_decay`: `{"model": …, "objective": …}`.
      stopped_by: What ended the run early: a signal, a preemption notice, another process, or a failed checkpoint; None
        if nothing did.
      evaluation: The metrics of the last evaluation of this start: `metric` -> value, or `evaluation/metric` if there
        are several; empty without one.
      best_step: The step of the best checkpoint by the checkpointer's `best_metric`, or None if no checkpoint was
        saved with an evaluation.
      flops_per_step: Floating-point operations of the model in a training step; see `training.flops.of_step`.
      num_trained: Number of parameters that the last update trains; see `optimizers.count_trained`.
    """

    model_dir: str
    step: int
    params: Any
    stopped_by: str | None
    evaluation: dict[str, float]
    best_step: int | None = None
    flops_per_step: float | None = None
    num_trained: int | None = None


@console_log.enabled()
@distributed.with_watchdog()
def train(
    recipe: Recipe,
    *,
    on_log: StepCallback | None = None,
    on_eval: StepCallback | None = None,
    on_save: Callable[[int], None] | None = None,
    on_finish: Callable[..., None] | None = None,
    run_config: run_directory.RunConfig | None = None,
) -> TrainResult:
    """Trains until the last step, and resumes from the latest checkpoint in the run directory.

    Args:
      recipe: What the run trains, on which data, and how.
      on_log: Called in process 0 with a step and its training metrics, whenever they are logged.
      on_eval: Called in process 0 with a step and the metrics of its evaluation, named as in `TrainResult.evaluation`.
      on_save: Called in process 0 with the step of a checkpoint in the run directory when it is complete. Checkpoints
        are written in the background, so this is before the next one is saved, or at the end of the run.
      on_finish: Called with `params`, `objective`, `partitioner`, `data` and `model_dir` when training has finished.
      run_config: The resolved gin configuration. It is stored in the run directory and compared when the run resumes.

    Returns:
      The `TrainResult`.

    Raises:
      UserError: Parts of the recipe are invalid or do not fit together, or a later batch of the data is invalid.
      TrainingFailed: The loss stayed non-finite.
      ProcessLost: Another process of the run has ended.
      RunInUse: Another run writes to the run directory.
      SilentDataCorruption: A repeated step has given other bits.
      RunFailed: The run directory can no longer be written to.
      Stopped: A signal arrived before the end of the first step.
    """
    # ---- Program: everything that is known without data or arrays ----------------------------------------------------
    started = time.monotonic()
    given, recipe = recipe, recipe_vocabulary.with_copy(recipe)
    periods, storage = recipe.periods, recipe.storage
    checks.check_settings(recipe)
    program = make_program(recipe)
    program.trace()
    partitioner = program.partitioner
    is_main = jax.process_index() == 0

    with contextlib.ExitStack() as stack:
        stack.enter_context(host_functions.explained())
        log = stack.enter_context(run_log.RunLog(enabled=is_main))
        # ---- Checks: of the data and the initial weights, while the step is compiled ---------------------------------
        compilation = stack.enter_context(Background(program.compile))
        checked = checks.check_recipe(recipe, program)
        vocabulary, evaluations = checked.vocabulary, checked.evaluations
        if is_main:
            export_note.log(program.config, recipe.predicting)

        # ---- Run directory: exclusive, and its stored configuration agrees -------------------------------------------
        run = stack.enter_context(open_run.opened(storage.model_dir, run_config, log, started=started))
        stack.enter_context(debugging.explain_out_of_memory(program, recipe.update.microbatches))
        logging.info("%s", partitioner)
        checks.check_stored(run.model_dir, recipe, vocabulary, run_config)
        distributed.heartbeat("the other processes, to compare configurations and directories")
        distributed.check_agreement(run.model_dir, run_config.text if run_config else "")

        # ---- Data: batches are prefetched while the model is initialized ---------------------------------------------
        feed = run_feed.open_feed(recipe, program.config.vocab_size, partitioner)
        stack.enter_context(run_directory.closing(feed))
        described = checks.check_data_agreement(recipe, evaluations, vocabulary)

        # ---- State: restored, or initialized directly into its shards ------------------------------------------------
        checkpointer = resuming.open_checkpoints(storage, run.model_dir)
        stack.enter_context(run_directory.closing(checkpointer))
        checks.check_best_metric(recipe, program, evaluations, checkpointer)
        start = run_start.begin(recipe, program, run, checkpointer)
        stopping = early_stopping.restore(
            checkpointer.best_metric, periods.patience, run.model_dir, start.step, evaluations.names
        )
        early = stopping.reason() if start.step and stopping.is_exhausted else None
        if start.step >= periods.total or early:
            ended = loop.LoopResult(start.state, start.step, stopped_by=None, evaluation={}, finished=early)
            result = _result(ended, start, program, run, checkpointer)
            longer = run_directory.how_to_train_longer(run.model_dir, start.step, is_early=early is not None)
            logging.info("%s", longer)
            return result
        start = start.with_teachers(recipe, program)
        if start.position is not None:
            overridden = "--override_config" if run_config is not None and run_config.override else None
            with run.goodput.phase("restore"):
                run_feed.restore_position(feed, start.position, reason=overridden if start.resumes else "the fork")

        # ---- Reports: metrics, progress, description -----------------------------------------------------------------
        description.log_parameters(program)
        checkpointer.begin()  # first, because no later start may resume from a step whose metrics are removed
        reports = stack.enter_context(open_reports(run, recipe, start, Callbacks(on_log, on_eval, on_save)))
        description.store(run, recipe, program, start, given=given, vocabulary=vocabulary, data=described)

        # ---- Training: from the first batch to the last checkpoint ---------------------------------------------------
        distributed.heartbeat("the compilation of the training step")
        with run.goodput.phase("compile"):
            compilation.wait()
        ended = loop.run_steps(
            program.repeated(periods.repeat),
            start,
            feed,
            run=run,
            recipe=recipe,
            checkpointer=checkpointer,
            evaluations=evaluations,
            stopping=stopping,
            reports=reports,
        )
        result = _result(ended, start, program, run, checkpointer)

    # ---- Result ------------------------------------------------------------------------------------------------------
    if on_finish is not None and not result.stopped_by:
        distributed.heartbeat("the final report")
        on_finish(
            params=result.params,
            objective=recipe.predicting,
            partitioner=partitioner,
            data=recipe.held_out,
            model_dir=result.model_dir,
        )
    return result


def _result(
    ended: loop.LoopResult, start: run_start.Start, program: Program, run: open_run.OpenRun, checkpointer: Checkpointer
) -> TrainResult:
    """Logs how a run has ended, and returns its result."""
    best = checkpointer.best()
    if ended.stopped_by:
        resume = run_directory.how_to_resume(run.model_dir, checkpointer.latest(), ended.step)
        logging.warning("stopped by %s, %s", ended.stopped_by, resume)
    else:
        logging.info("%s", run_directory.describe_end(run.model_dir, ended.step, ended.finished, best))
    return TrainResult(
        model_dir=run.model_dir,
        step=ended.step,
        params=to_evaluate(ended.state, start.frozen),
        stopped_by=ended.stopped_by,
        evaluation=ended.evaluation,
        best_step=best and best.step,
        flops_per_step=program.flops,
        num_trained=program.num_trained,
    )
