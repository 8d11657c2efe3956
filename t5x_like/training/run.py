"""A run from its first access to MODEL_DIR to its last checkpoint; `train` and `distill` prepare its arguments."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import logging

from t5x_like import metrics, optimizers, partitioning, paths
from t5x_like.data import token_ids
from t5x_like.data.feed import DataMismatchError, Feed, PrefetchingFeed
from t5x_like.data.source import DataSource
from t5x_like.distillation.teachers import LoadedTeacher
from t5x_like.objectives.base import Objective
from t5x_like.runtime import distributed, run_files
from t5x_like.runtime.background import Background
from t5x_like.runtime.preemption import StopRequest
from t5x_like.training import (
    debugging,
    loop,
    run_directory,
    run_lock,
    run_tokenizer,
    run_vocabulary,
    step,
    warm_start,
    weight_source,
)
from t5x_like.training import teachers as teacher_files
from t5x_like.training.checkpointer import Checkpointer
from t5x_like.training.checkpoints import Checkpoints
from t5x_like.training.evaluation import Evaluation, Evaluations, check_run, restore_improvement
from t5x_like.training.local_checkpoints import LocalTier
from t5x_like.training.program import Program
from t5x_like.training.repeated_step import RepeatedStep
from t5x_like.training.tiered_checkpoints import TieredCheckpoints


@dataclasses.dataclass
class TrainResult:
    """The result of `train` and `distill`.

    Attributes:
      model_dir: The run directory.
      step: The last step.
      params: The parameters after it, `{"model": …, "objective": …}`.
      stopped_by: The signal that ended the run early, or None.
      evaluation: The metrics of the last evaluation: `metric` -> value, or `evaluation/metric` if there are several.
      best_step: The step of the best checkpoint by the checkpointer's `best_metric`, or None if no checkpoint was
        saved with an evaluation.
    """

    model_dir: str
    step: int
    params: Any
    stopped_by: str | None
    evaluation: dict[str, float]
    best_step: int | None = None


def run(
    program: Program,
    *,
    objective: Objective,
    evaluated: Objective,
    optimizer: optimizers.Optimizer,
    data: DataSource,
    periods: loop.Periods,
    model_dir: str | None,
    evaluations: Mapping[str, Evaluation] | None,
    microbatches: int,
    seed: int,
    checkpoints: Callable[..., Checkpoints],
    local_checkpoints: LocalTier | None,
    patience: int | None,
    initial: weight_source.Source | None,
    vocabulary_path: str | None,
    stop_after_skipped: int,
    repeat_period: int | None,
    on_finish: Callable[..., None] | None,
    run_config: run_directory.RunConfig | None,
    teachers: Mapping[str, LoadedTeacher] | None = None,
    arguments: Mapping[str, Any],
    started: float,
) -> TrainResult:
    """Trains until the last step, and resumes from the latest checkpoint in `model_dir`.

    Args:
      program: The compiled functions of the run.
      objective: The objective of the program.
      evaluated: The objective of evaluations, which reads the same parameters.
      optimizer: Its parameter groups say which parameters are frozen.
      data: Source of training batches.
      periods: When to log, evaluate, save and stop.
      model_dir: The run directory, or None for a new one. See `train.train` for this and the following arguments.
      evaluations: Name -> what to evaluate.
      microbatches: Number of microbatches of the program, for error messages.
      seed: Seed of initialization and dropout.
      checkpoints: Creates the checkpoints of a directory.
      local_checkpoints: Where and how often to save on each host as well.
      patience: Number of evaluations without improvement after which the run finishes early.
      initial: The pretrained weights to start from.
      vocabulary_path: The tokenizer to copy to the run directory if the data has no vocabulary in files.
      stop_after_skipped: Number of consecutive non-finite updates that ends the run.
      repeat_period: Steps between two steps that are computed twice, or None.
      on_finish: Called when training has finished.
      run_config: The resolved gin configuration.
      teachers: Name -> teacher of the program.
      arguments: The arguments of `train.train`, from which the stored configuration of a run from Python is derived.
      started: `time.monotonic()` at the start of the command.

    Returns:
      The `TrainResult`.

    Raises:
      Exception: See `train.train`.
    """
    config, shapes, partitioner, teachers = program.config, program.shapes, program.partitioner, dict(teachers or {})
    train_step = program.train_step
    if repeat_period is not None:
        train_step = RepeatedStep(train_step, partitioner.mesh, program.shardings[0], repeat_period)
    with contextlib.ExitStack() as stack:
        # ---- Checks: of the data and the initial weights, while the step is compiled -------------------------------
        compilation = stack.enter_context(Background(program.compile))
        data.check_vocabulary(config.vocab_size)
        vocabulary = run_tokenizer.of_data(data, objective.features, vocabulary_path)
        evaluate = Evaluations(evaluations or {}, evaluated, config, partitioner)
        check_run(evaluate.names if periods.evaluate is not None else (), patience)
        if initial is not None and not may_resume(model_dir):
            model = optimizers.merge(shapes[0].params, shapes[1].params)["model"]
            warm_start.check(initial, model, config, partitioner)
            run_tokenizer.check_initial(initial, vocabulary)

        # ---- Run directory: exclusive, and its stored configuration agrees ----------------------------------------
        model_dir = run_directory.resolve(model_dir)
        is_main = jax.process_index() == 0
        logging.info("run directory %s", model_dir)
        logging.info("%s", _describe(partitioner))
        stop = stack.enter_context(StopRequest())
        # These contexts exit in reverse order. Errors are explained inside of the status, so that status.json and the
        # supervisor's log have the same message as the command.
        with paths.explain_path_errors("MODEL_DIR", model_dir), run_directory.explain_storage_errors(model_dir):
            lock = stack.enter_context(run_lock.RunLock(model_dir, enabled=is_main))
        goodput = stack.enter_context(metrics.GoodputMonitor(model_dir, enabled=is_main, started=started))
        status = stack.enter_context(run_directory.Status(model_dir, enabled=is_main, goodput=goodput))
        stack.enter_context(distributed.explain_lost_process())
        stack.enter_context(distributed.reports_hangs(model_dir, status.report_hang))
        stack.enter_context(run_directory.explain_storage_errors(model_dir))
        stack.enter_context(debugging.explain_out_of_memory(program, microbatches))
        run_directory.check_config(model_dir, run_config)
        teacher_files.check(model_dir, teachers, run_config)
        distributed.heartbeat("the other processes, to compare configurations and directories")
        distributed.check_agreement(model_dir, run_config.text if run_config else "")

        # ---- Data: batches are prefetched while the model is initialized ------------------------------------------
        feed = stack.enter_context(run_directory.closing(_open_feed(data, objective, config.vocab_size, partitioner)))

        # ---- State: restored, or initialized directly into its shards ----------------------------------------------
        checkpointer = stack.enter_context(
            run_directory.closing(_open_checkpoints(checkpoints, local_checkpoints, model_dir))
        )
        checkpointer.prepare(_saved_shapes(shapes), partitioner)
        with goodput.phase("restore"):
            start = run_directory.resume_step(checkpointer, model_dir, run_config)
        if start:
            run_tokenizer.check(model_dir, vocabulary)
        status.step = start
        distributed.heartbeat(f"the state of step {start}")
        if start:
            with goodput.phase("restore"):
                state, frozen = _restore(checkpointer, start, shapes, optimizer, partitioner)
            run_directory.warn_if_environment_changed(checkpointer.about(start), partitioner)
        else:
            state, frozen = program.init(jax.random.key(seed))
            if initial is not None:
                state, frozen = warm_start.restore(initial, state, frozen, config, partitioner, objective.other_names)
        improvement = restore_improvement(checkpointer.best_metric, patience, model_dir, start, evaluate.names)
        early = improvement.reason() if start and improvement.is_exhausted else None
        if start >= periods.total_steps or early:
            best = checkpointer.best()
            logging.info("%s", run_directory.describe_end(model_dir, start, early, best))
            logging.info("%s", run_directory.how_to_train_longer(model_dir, start, is_early=early is not None))
            params = optimizers.merge(state.params, frozen.params)
            return TrainResult(model_dir, start, params, None, {}, best and best.step)
        read = {name: each.read(partitioner) for name, each in teachers.items() if each.runs}
        frozen = frozen.replace(teachers=read)
        if start:
            with goodput.phase("restore"):
                _restore_position(feed, checkpointer.restore_feed(start), run_config)

        # ---- Reports: metrics, progress, description -----------------------------------------------------------------
        info = run_directory.model_info(optimizers.merge(shapes[0].params, shapes[1].params), partitioner)
        logging.info("%s", info.splitlines()[-1])
        writer = stack.enter_context(run_directory.closing(metrics.MetricsWriter(model_dir, enabled=is_main)))
        checkpointer.begin()  # first, because no later start may resume from a step whose metrics are removed
        writer.rewind(start)
        if is_main:
            run_directory.write_description(model_dir, info, run_config, {**arguments, "model_dir": model_dir})
            teacher_files.store(model_dir, teachers)
            if not start:
                run_tokenizer.store(model_dir, vocabulary, initial.path if initial else None)
                run_vocabulary.store(model_dir, data.vocabulary_kind(objective.features))
        progress = stack.enter_context(metrics.Progress(periods.total_steps, start, enabled=is_main))
        profile_steps = run_config.profile_steps if run_config and is_main else None
        profile = stack.enter_context(debugging.Profile(model_dir, profile_steps))

        # ---- Training: from the first batch to the last checkpoint ---------------------------------------------------
        distributed.heartbeat("the compilation of the training step")
        with goodput.phase("compile"):
            compilation.wait()
        result = loop.run(
            dataclasses.replace(program, train_step=train_step),
            state,
            frozen,
            feed,
            periods=periods,
            checkpointer=checkpointer,
            evaluate=evaluate if evaluate.names else None,
            improvement=improvement,
            reports=loop.Reports(writer, progress, status, profile, goodput),
            stop=stop,
            lock=lock,
            stop_after_skipped=stop_after_skipped,
            started=started,
        )
        if result.stopped_by:
            resume = run_directory.how_to_resume(model_dir, checkpointer.latest(), result.step)
            logging.warning("stopped by %s, %s", result.stopped_by, resume)
        else:
            logging.info("%s", run_directory.describe_end(model_dir, result.step, result.finished, checkpointer.best()))
        best = checkpointer.best()

    # ---- Result -------------------------------------------------------------------------------------------------
    params = optimizers.merge(result.state.params, frozen.params)
    if on_finish is not None and not result.stopped_by:
        distributed.heartbeat("the final report")
        held_out = next((each.data for each in (evaluations or {}).values() if each.data is not None), data)
        on_finish(params=params, objective=evaluated, partitioner=partitioner, data=held_out, model_dir=model_dir)
    return TrainResult(model_dir, result.step, params, result.stopped_by, result.evaluation, best and best.step)


def may_resume(model_dir: Any) -> bool:
    """Returns whether a run directory has checkpoints, so that its initial weights are not read."""
    if not isinstance(model_dir, str | os.PathLike):
        return False
    with paths.explain_path_errors("MODEL_DIR", model_dir):
        return run_files.has_checkpoints(os.fspath(model_dir))


def _open_feed(
    data: DataSource, objective: Objective, vocab_size: int, partitioner: partitioning.Partitioner
) -> PrefetchingFeed:
    """Starts to prefetch this process's shard of the data as global arrays. Token ids and labels are checked."""
    index, count = partitioner.feed_shard
    source = data.host_iterator(objective.features, process_index=index, process_count=count)
    for line in data.describe():
        logging.info("%s", line)
    limits = token_ids.model_limits(objective.features, vocab_size)

    def put(batch):
        token_ids.check_ids(batch, limits, data=data.name, holder="the model")
        token_ids.check_labels(batch, objective.features.num_labels, data=data.name)
        return partitioner.put_batch(batch, objective.features.axes)

    return PrefetchingFeed(source, put)


def _open_checkpoints(checkpoints: Callable[..., Checkpoints], local: LocalTier | None, model_dir: str) -> Checkpointer:
    persistent = checkpoints(os.path.join(model_dir, "checkpoints"))
    return persistent if local is None else TieredCheckpoints(persistent, local, model_dir)


def _restore(
    checkpointer: Checkpointer,
    last: int,
    shapes: tuple[step.TrainState, step.Frozen],
    optimizer: optimizers.Optimizer,
    partitioner: partitioning.Partitioner,
) -> tuple[step.TrainState, step.Frozen]:
    """Restores `(state, frozen)`; a checkpoint holds trainable and frozen parameters together."""
    restored = checkpointer.restore(last, _saved_shapes(shapes), partitioner)
    trainable, frozen = optimizers.split(restored.params, optimizer.groups)
    logging.info("restored step %d", last)
    return restored.replace(params=trainable), step.Frozen(frozen)


def _saved_shapes(shapes: tuple[step.TrainState, step.Frozen]) -> step.TrainState:
    state, frozen = shapes
    return state.replace(params=optimizers.merge(state.params, frozen.params))


def _restore_position(feed: Feed, position: bytes, run_config: run_directory.RunConfig | None) -> None:
    """Restores the position in the data. With --override_config, other data starts from its beginning."""
    try:
        feed.restore(position)
    except DataMismatchError as error:
        if run_config is None or not run_config.override:
            raise
        logging.warning(
            "%s: because of --override_config, the data starts from its beginning. Examples that were already read "
            "are read again in the same order, unless the seed changes",
            str(error).rstrip("."),
        )


def _describe(partitioner: partitioning.Partitioner) -> str:
    mesh = {axis: size for axis, size in partitioner.mesh.shape.items() if size > 1}
    shape = ", ".join(f"{axis}={size}" for axis, size in mesh.items()) or "one device"
    return f"{partitioner.mesh.size} {partitioner.platform} devices, mesh {shape}, rules {partitioner.rules_name}"
