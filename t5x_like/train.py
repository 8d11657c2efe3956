"""The first training loop: pretrain or fine-tune a model on an objective. A scroll, in the order data flows."""

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from absl import logging

from t5x_like import metrics, optimizers, partitioning, paths
from t5x_like.data import token_ids
from t5x_like.data.feed import Feed, OtherData
from t5x_like.errors import RunFailed, UserError
from t5x_like.runtime import compilation_cache, console_log, distributed
from t5x_like.runtime.preemption import StopRequest
from t5x_like.training import debugging, run_directory, run_lock, step, warm_start
from t5x_like.training.checkpoints import Checkpoints
from t5x_like.training.evaluation import Evaluator
from t5x_like.training.program import make_program


class TrainingFailed(RunFailed):
    """Training cannot go on; the message says why and what to do."""


@dataclasses.dataclass
class TrainResult:
    """What `train` hands back.

    Attributes:
      model_dir: the run's folder.
      step: the step it stopped at.
      params: the parameters there, `{"model": …, "objective": …}`.
      stopped_by: the signal that ended it early, or None.
      evaluation: the last evaluation's metrics.
    """

    model_dir: str
    step: int
    params: Any
    stopped_by: str | None
    evaluation: dict[str, float]


@console_log.enabled()
@distributed.with_watchdog()
def train(
    *,
    model: Any,
    objective: Any,
    optimizer: optimizers.Optimizer,
    data: Any,
    total_steps: int,
    model_dir: str | None = None,
    eval_data: Any = None,
    eval_objective: Any = None,
    partitioner: partitioning.Partitioner | None = None,
    microbatches: int = 1,
    max_grad_norm: float | None = None,
    loss_normalizing_factor: step.LossNormalization = "NUM_REAL_TARGET_TOKENS",
    seed: int = 0,
    log_period: int = 100,
    eval_period: int | None = 1000,
    eval_steps: int = 20,
    save_period: int | None = 1000,
    checkpoints: Callable[..., Checkpoints] = Checkpoints,
    initial_checkpoint_path: str | None = None,
    initial_mapping: Sequence[tuple[str, str]] = (),
    stop_after_skipped: int = 20,
    compiler_options: Mapping[str, Any] | None = None,
    on_finish: Callable[..., None] | None = None,
    run_config: run_directory.RunConfig | None = None,
) -> TrainResult:
    """Trains until `total_steps`, resuming from the newest checkpoint in `model_dir`.

    Args:
      model: a family's configuration, such as `models.t5.T5Config`.
      objective: see `objectives.base.Objective`.
      optimizer: see `optimizers`; its parameter groups say what is frozen.
      data: where training batches come from, such as `data.seqio_feed.SeqIOSource`.
      total_steps: the step to stop at.
      model_dir: local path or bucket; a new numbered folder under `./runs` by default.
      eval_data: where evaluation batches come from; None for no evaluation.
      eval_objective: what evaluation measures, where it is not `objective`; it may own no heads.
      partitioner: mesh and rules; all devices, fully sharded, by default.
      microbatches: parts a batch is split into, one after the other, to lower peak memory.
      max_grad_norm: gradients of a larger global norm are scaled down to it.
      loss_normalizing_factor: `"NUM_REAL_TARGET_TOKENS"` (mean), a number, or None (sum, T5X's default).
      seed: of initialisation and dropout; the data has its own.
      log_period, eval_period, save_period: in steps; None for never (the last step is always evaluated and saved
        otherwise).
      eval_steps: batches an evaluation reads at most.
      checkpoints: makes the `Checkpoints` of a directory.
      initial_checkpoint_path: a run folder, a checkpoint, or a Hugging Face folder whose model parameters, and heads
        where they match, to start from.
      initial_mapping: (regex, replacement) pairs that turn this model's tensor names into the checkpoint's.
      stop_after_skipped: how many non-finite updates in a row end the run.
      compiler_options: XLA's, for the step, such as those in `gin_configs/hardware`.
      on_finish: called with what it asks for by name once training has finished, to report on the result.
      run_config: the resolved configuration, to be kept in `model_dir` and compared on resumption.

    Returns:
      The `TrainResult`.

    Raises:
      TrainingFailed: the loss stayed non-finite.
      ProcessLost: another process of the run has gone.
      RunInUse: another process writes to `model_dir`.
      RunFailed: `model_dir` cannot be written any more.
      Stopped: a signal came before the end of the first step.
      UserError: what was asked for does not fit together; nothing has been written then.
    """
    # ---- the run's folder -----------------------------------------------------------------------------------------
    arguments = dict(locals())
    started = time.monotonic()
    _check_periods(total_steps, log_period, eval_period, eval_steps, save_period)
    partitioner = partitioner or partitioning.Partitioner()
    program = make_program(
        model=model,
        objective=objective,
        optimizer=optimizer,
        data=data,
        partitioner=partitioner,
        microbatches=microbatches,
        max_grad_norm=max_grad_norm,
        loss_normalizing_factor=loss_normalizing_factor,
        seed=seed,
        compiler_options=compiler_options,
    )
    config, shapes = program.config, program.shapes
    data.check_vocabulary(config.vocab_size)
    model_dir = run_directory.resolve(model_dir)
    is_main = jax.process_index() == 0
    logging.info("run folder %s", model_dir)
    logging.info("%d %s devices, mesh %s, rules %s", *_describe(partitioner))
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        # What is entered here is left in the opposite order, however the run ends. Errors are explained inside of the
        # status, so that status.json and a supervisor's log say what the command says.
        with paths.explain_path_errors("MODEL_DIR", model_dir), run_directory.explain_storage_errors(model_dir):
            lock = stack.enter_context(run_lock.RunLock(model_dir, enabled=is_main))
        status = stack.enter_context(run_directory.Status(model_dir, enabled=is_main))
        stack.enter_context(distributed.explain_lost_process())
        stack.enter_context(run_directory.explain_storage_errors(model_dir))
        stack.enter_context(debugging.explain_out_of_memory(program, microbatches))
        run_directory.check_config(model_dir, run_config)
        distributed.heartbeat("the others, to compare configurations and folders")
        distributed.check_agreement(model_dir, run_config.text if run_config else "")

        # ---- data: it starts to flow while the model is being built ------------------------------------------------
        share, shares = partitioner.feed_shard
        source = data.host_iterator(objective.features, process_index=share, process_count=shares)
        for line in data.describe():
            logging.info("%s", line)
        limits = token_ids.model_limits(objective.features, config.vocab_size)

        def put(batch):
            token_ids.check_ids(batch, limits, data=token_ids.name_of(data), holder="the model")
            return partitioner.put_batch(batch)

        feed = stack.enter_context(run_directory.closing(Feed(source, put)))

        # ---- model, optimizer, state: initialised straight into their shards ---------------------------------------
        keeper = stack.enter_context(run_directory.closing(checkpoints(os.path.join(model_dir, "checkpoints"))))
        start = run_directory.resume_step(keeper, model_dir, run_config)
        status.step = start
        distributed.heartbeat(f"the state of step {start}")
        if start:
            state, frozen = _restore(keeper, start, shapes, optimizer, partitioner)
            run_directory.warn_if_environment_changed(keeper.about(start), partitioner)
        else:
            state, frozen = program.init(jax.random.key(seed))
            if initial_checkpoint_path:
                state, frozen = warm_start.restore(
                    initial_checkpoint_path, state, frozen, config, partitioner, initial_mapping
                )
        if start >= total_steps:
            logging.info(
                "%s is finished at step %d; to go on, repeat the command with --gin.MODEL_DIR=%s and "
                "--gin.TRAIN_STEPS=%d or more (and --override_config where the learning rate depends on TRAIN_STEPS)",
                *(model_dir, start, model_dir, 2 * start),
            )
            return TrainResult(model_dir, start, optimizers.merge(state.params, frozen), None, {})
        if start:
            _restore_position(feed, keeper.restore_feed(start), run_config)
        info = run_directory.model_info(optimizers.merge(shapes[0].params, shapes[1]), partitioner)
        logging.info("%s", info.splitlines()[-1])

        # ---- who watches: evaluation, metrics, progress, status ----------------------------------------------------
        evaluate = Evaluator(eval_objective or objective, eval_data, partitioner, eval_steps, config.vocab_size)
        writer = stack.enter_context(run_directory.closing(metrics.MetricsWriter(model_dir, enabled=is_main)))
        writer.rewind(start)
        if is_main:
            run_directory.write_description(model_dir, info, run_config, arguments | {"model_dir": model_dir})
        progress = stack.enter_context(metrics.Progress(total_steps, start, enabled=is_main))
        profile_steps = run_config.profile_steps if run_config and is_main else None
        profile = stack.enter_context(debugging.Profile(model_dir, profile_steps))

        # ---- the loop --------------------------------------------------------------------------------------------
        clock = metrics.Throughput(
            flops_per_step=config.train_flops(program.batch_shapes), devices=partitioner.mesh.devices
        )
        results: dict[str, float] = {}
        pending: tuple[int, Any] | None = None

        def log(pending):
            """Fetches a step's metrics, one step late so that the device never waits for the host.

            Returns whether the state after that step is worth saving: the update was finite, and so are the parameters.
            """
            number, pairs = pending
            values = {
                name: float(total) / max(float(weight), 1e-9) for name, (total, weight) in jax.device_get(pairs).items()
            }
            if number > start + 1:
                clock.count(values["tokens"], feed.wait_seconds)
            if values["skipped_in_a_row"] >= stop_after_skipped:
                raise TrainingFailed(
                    f"the loss or its gradient was not finite for {stop_after_skipped} steps in a row, up to step "
                    f"{number}. Lower the learning rate, clip gradients (max_grad_norm), or look at the data; "
                    + _last_healthy(keeper, last_finite=number - int(values["skipped_in_a_row"]))
                )
            if number == 1 or number % log_period == 0 or number == total_steps:
                row = _row(values, clock)
                writer.write(number, "train", row)
                progress.update(number, row)
            return values["skipped_in_a_row"] == 0 and math.isfinite(values["param_norm"])

        current, stopped_by, ballot = start, None, None
        status.write("running", step=current)
        while current < total_steps and not stopped_by:
            distributed.heartbeat(f"step {current + 1}")
            lock.check()
            batch = next(feed)
            debugging.log_first_batch(batch, current == start)
            profile.before_step(current + 1)
            earlier, ballot = ballot, stop.vote()
            state, pairs = program.train_step(state, frozen, batch)
            current += 1
            status.step = current
            profile.after_step(current, pairs)
            if current == start + 1:
                jax.block_until_ready(state.step)
                stop.defer()
                clock.start(feed.wait_seconds)  # the first step is not measured: it compiles
                logging.info("first step done %.0f s after the start", time.monotonic() - started)
                compilation_cache.log_use()
            if pending:
                log(pending)
            pending = (current, pairs)
            stopped_by = stop.agreed(earlier)
            done = current == total_steps
            evaluates = eval_data is not None and eval_period and (done or current % eval_period == 0)
            saves = save_period and (done or stopped_by or current % save_period == 0)
            if evaluates or saves or stopped_by or done:
                healthy = log(pending)
                pending = None
                clock.pause()
                if evaluates:
                    distributed.heartbeat(f"the evaluation after step {current}")
                    results = evaluate(optimizers.merge(state.params, frozen))
                    writer.write(current, "validation", results)
                    progress.note(current, results)
                if saves and not healthy:
                    newest = keeper.latest()
                    logging.warning(
                        "checkpoint %d is not saved: its last update or its parameters are not finite; %s",
                        *(current, "none was saved before" if newest is None else f"the newest is {newest}"),
                    )
                elif saves:
                    distributed.heartbeat(f"the checkpoint of step {current}")
                    lock.check()
                    writer.flush()  # rows up to this step are on disk before its checkpoint commits
                    saved = state.replace(params=optimizers.merge(state.params, frozen))
                    keeper.save(
                        current,
                        saved,
                        feed=feed.state(),
                        about=run_directory.environment(partitioner),
                        metrics=results if evaluates else None,
                    )
                clock.resume(feed.wait_seconds)
        distributed.heartbeat("the last checkpoint")
        keeper.wait()
        writer.flush()
        status.write("finished" if current >= total_steps else "preempted", step=current)
        if current < total_steps:
            logging.warning(
                "stopped by %s, %s", stopped_by, run_directory.how_to_resume(model_dir, keeper.latest(), current)
            )

    # ---- what came of it --------------------------------------------------------------------------------------------
    params = optimizers.merge(state.params, frozen)
    if on_finish is not None and current >= total_steps and not stopped_by:
        distributed.heartbeat("the report at the end")
        on_finish(
            params=params, objective=objective, partitioner=partitioner, data=eval_data or data, model_dir=model_dir
        )
    return TrainResult(model_dir, current, params, stopped_by if current < total_steps else None, results)


def _restore(keeper, last, shapes, optimizer, partitioner):
    state_shapes, frozen_shapes = shapes
    whole = state_shapes.replace(params=optimizers.merge(state_shapes.params, frozen_shapes))
    restored = keeper.restore(last, whole, partitioner)
    trainable, frozen = optimizers.split(restored.params, optimizer.groups)
    logging.info("restored step %d", last)
    return restored.replace(params=trainable), frozen


def _restore_position(feed, position, run_config):
    """Continues in the data where the checkpoint was saved; in other data, from the start where that was asked for."""
    try:
        feed.restore(position)
    except OtherData as error:
        if run_config is None or not run_config.override:
            raise
        logging.warning(
            "%s: as --override_config is given, the data begins again from its start. Examples that were read before "
            "come again in the same order, unless another seed is given",
            str(error).rstrip("."),
        )


def _last_healthy(keeper, last_finite):
    """Says which checkpoint to resume from, after deleting the one whose every next step was not finite.

    Such a checkpoint, saved after the step `last_finite`, has finite parameters that already give a loss that is not:
    resuming from it would only repeat the failure. It is kept where it is the only one.
    """
    keeper.wait()
    steps = keeper.steps()
    if not steps:
        return "no checkpoint has been saved yet"
    healthy = max((step for step in steps if step < last_finite), default=None)
    if healthy is None:
        return f"the only checkpoint is {steps[-1]}, and no finite step has followed it"
    if steps[-1] > healthy:
        keeper.delete(steps[-1])
    return f"the last healthy checkpoint is {healthy}, which the same command resumes from"


def _row(values: Mapping[str, float], clock: metrics.Throughput) -> dict[str, float]:
    kept = {name: value for name, value in values.items() if name not in ("tokens", "skipped_in_a_row")}
    return kept | clock.rates()


def _check_periods(total_steps, log_period, eval_period, eval_steps, save_period):
    for name, period in (
        ("TRAIN_STEPS", total_steps),
        ("LOG_PERIOD", log_period),
        ("EVAL_PERIOD", eval_period),
        ("EVAL_STEPS", eval_steps),
        ("SAVE_PERIOD", save_period),
    ):
        if period is not None and period < 1:
            never = " (None for never)" if name in ("EVAL_PERIOD", "SAVE_PERIOD") else ""
            raise UserError(f"{name}={period} must be at least 1{never}")


def _describe(partitioner):
    mesh = {axis: size for axis, size in partitioner.mesh.shape.items() if size > 1}
    return partitioner.mesh.size, partitioner.platform, mesh or "of one", partitioner.rules_name
