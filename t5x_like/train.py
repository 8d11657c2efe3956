"""Pretrains or fine-tunes a model on an objective. The function `train` reads in the order in which data flows."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from absl import logging

from t5x_like import metrics, optimizers, partitioning, paths
from t5x_like.data import token_ids
from t5x_like.data.feed import DataMismatchError, Feed, PrefetchingFeed
from t5x_like.data.source import DataSource
from t5x_like.models.base import ModelConfig
from t5x_like.objectives.base import Objective
from t5x_like.runtime import console_log, distributed
from t5x_like.runtime.preemption import StopRequest
from t5x_like.training import debugging, loop, run_directory, run_lock, run_tokenizer, step, warm_start
from t5x_like.training.checkpoints import Checkpoints
from t5x_like.training.evaluation import Evaluation, Evaluations, check_run, restore_improvement
from t5x_like.training.program import make_program


@dataclasses.dataclass
class TrainResult:
    """The result of `train`.

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


@console_log.enabled()
@distributed.with_watchdog()
def train(
    *,
    model: ModelConfig,
    objective: Objective,
    optimizer: optimizers.Optimizer,
    data: DataSource,
    total_steps: int,
    model_dir: str | None = None,
    evaluations: Mapping[str, Evaluation] | None = None,
    partitioner: partitioning.Partitioner | None = None,
    microbatches: int = 1,
    max_grad_norm: float | None = None,
    loss_normalizing_factor: step.LossNormalization = "NUM_REAL_TARGET_TOKENS",
    seed: int = 0,
    log_period: int = 100,
    eval_period: int | None = 1000,
    save_period: int | None = 1000,
    checkpoints: Callable[..., Checkpoints] = Checkpoints,
    patience: int | None = None,
    initial_checkpoint_path: str | None = None,
    initial_mapping: Sequence[tuple[str, str]] = (),
    initial_new_tokens: int = 0,
    vocabulary_path: str | None = None,
    stop_after_skipped: int = 20,
    compiler_options: Mapping[str, Any] | None = None,
    on_finish: Callable[..., None] | None = None,
    run_config: run_directory.RunConfig | None = None,
) -> TrainResult:
    """Trains until `total_steps`, and resumes from the latest checkpoint in `model_dir`.

    Args:
      model: The configuration of a model family, such as `models.t5.T5Config`.
      objective: What the model learns; see `objectives.base.Objective`.
      optimizer: See `optimizers`. Its parameter groups say which parameters are frozen.
      data: Source of training batches, such as `data.seqio_feed.SeqIOSource`.
      total_steps: The step to stop at.
      model_dir: The run directory, a local path or a bucket. By default a new numbered directory under `./runs`.
      evaluations: Name -> what to evaluate. The name is the split of its rows in metrics.jsonl. None or an empty
        mapping disables evaluation.
      partitioner: Device mesh and sharding rules. By default all devices with fully sharded parameters.
      microbatches: Number of microbatches that each batch is split into. They run one after the other, which lowers
        peak memory.
      max_grad_norm: Gradients with a larger global norm are scaled down to it.
      loss_normalizing_factor: What the summed loss is divided by: `"NUM_REAL_TARGET_TOKENS"` (the mean over target
        tokens), a number, or None (the sum, which is T5X's default).
      seed: Seed of initialization and dropout. Data sources have their own.
      log_period: Steps between two rows of training metrics.
      eval_period: Steps between two evaluations. None disables evaluation. The last step is always evaluated otherwise.
      save_period: Steps between two checkpoints. None disables checkpoints. The last step is always saved otherwise.
      checkpoints: Creates the checkpointer of a directory. Its `keep_best` and `best_metric` decide which checkpoints
        are kept besides the latest.
      patience: Number of evaluations without improvement of the checkpointer's `best_metric` after which the run
        finishes early; None for no limit.
      initial_checkpoint_path: Pretrained weights to start from: a run directory, a checkpoint, a Hugging Face
        directory, or a T5X checkpoint. Heads are restored if they match.
      initial_mapping: (regex, replacement) pairs that turn this model's tensor names into those of the checkpoint.
      initial_new_tokens: Number of token ids of the model that follow those of the pretrained vocabulary. Their rows of
        the embeddings are freshly initialized.
      vocabulary_path: The Hugging Face directory or SentencePiece model that `data` uses, for tasks that can use any
        vocabulary. It is copied to `model_dir/tokenizer`, which the commands that read the run use instead.
      stop_after_skipped: Number of consecutive non-finite updates that ends the run.
      compiler_options: XLA options for the training step, such as those in `gin_configs/hardware`.
      on_finish: Called with `params`, `objective`, `partitioner`, `data` and `model_dir` when training has finished.
      run_config: The resolved gin configuration. It is stored in `model_dir` and compared when the run resumes.

    Returns:
      The `TrainResult`.

    Raises:
      UserError: Arguments are invalid or do not fit together. Nothing has been written.
      TrainingFailed: The loss stayed non-finite.
      ProcessLost: Another process of the run has ended.
      RunInUse: Another run writes to `model_dir`.
      RunFailed: `model_dir` can no longer be written to.
      Stopped: A signal arrived before the end of the first step.
    """
    # ---- Program: everything that is known without data or arrays -----------------------------------------------
    arguments = dict(locals())
    started = time.monotonic()
    periods = loop.Periods(total_steps, log=log_period, evaluate=eval_period, save=save_period)
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
    evaluate = Evaluations(evaluations or {}, objective, config, partitioner)
    check_run(evaluate.names if eval_period is not None else (), patience)

    # ---- Run directory: exclusive, and its stored configuration agrees --------------------------------------------
    model_dir = run_directory.resolve(model_dir)
    is_main = jax.process_index() == 0
    logging.info("run directory %s", model_dir)
    logging.info("%s", _describe(partitioner))
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        # These contexts exit in reverse order. Errors are explained inside of the status, so that status.json and the
        # supervisor's log have the same message as the command.
        with paths.explain_path_errors("MODEL_DIR", model_dir), run_directory.explain_storage_errors(model_dir):
            lock = stack.enter_context(run_lock.RunLock(model_dir, enabled=is_main))
        status = stack.enter_context(run_directory.Status(model_dir, enabled=is_main))
        stack.enter_context(distributed.explain_lost_process())
        stack.enter_context(run_directory.explain_storage_errors(model_dir))
        stack.enter_context(debugging.explain_out_of_memory(program, microbatches))
        run_directory.check_config(model_dir, run_config)
        distributed.heartbeat("the other processes, to compare configurations and directories")
        distributed.check_agreement(model_dir, run_config.text if run_config else "")

        # ---- Data: batches are prefetched while the model is initialized ------------------------------------------
        feed = stack.enter_context(run_directory.closing(_open_feed(data, objective, config.vocab_size, partitioner)))

        # ---- State: restored, or initialized directly into its shards ----------------------------------------------
        checkpointer = stack.enter_context(run_directory.closing(checkpoints(os.path.join(model_dir, "checkpoints"))))
        start = run_directory.resume_step(checkpointer, model_dir, run_config)
        if start:
            run_tokenizer.check(model_dir, vocabulary_path)
        status.step = start
        distributed.heartbeat(f"the state of step {start}")
        if start:
            state, frozen = _restore(checkpointer, start, shapes, optimizer, partitioner)
            run_directory.warn_if_environment_changed(checkpointer.about(start), partitioner)
        else:
            state, frozen = program.init(jax.random.key(seed))
            if initial_checkpoint_path:
                state, frozen = warm_start.restore(
                    initial_checkpoint_path,
                    state,
                    frozen,
                    config,
                    partitioner,
                    initial_mapping,
                    objective.other_names,
                    initial_new_tokens,
                )
        improvement = restore_improvement(checkpointer.best_metric, patience, model_dir, start, evaluate.names)
        early = improvement.reason() if start and improvement.is_exhausted else None
        if start >= total_steps or early:
            best_step = checkpointer.best()
            logging.info("%s", run_directory.describe_end(model_dir, start, early, best_step))
            logging.info("%s", run_directory.how_to_train_longer(model_dir, start, is_early=early is not None))
            params = optimizers.merge(state.params, frozen.params)
            return TrainResult(model_dir, start, params, None, {}, best_step)
        if start:
            _restore_position(feed, checkpointer.restore_feed(start), run_config)

        # ---- Reports: metrics, progress, description -----------------------------------------------------------------
        info = run_directory.model_info(optimizers.merge(shapes[0].params, shapes[1].params), partitioner)
        logging.info("%s", info.splitlines()[-1])
        writer = stack.enter_context(run_directory.closing(metrics.MetricsWriter(model_dir, enabled=is_main)))
        writer.rewind(start)
        if is_main:
            run_directory.write_description(model_dir, info, run_config, arguments | {"model_dir": model_dir})
            if not start:
                run_tokenizer.store(model_dir, vocabulary_path, initial_checkpoint_path)
        progress = stack.enter_context(metrics.Progress(total_steps, start, enabled=is_main))
        profile_steps = run_config.profile_steps if run_config and is_main else None
        profile = stack.enter_context(debugging.Profile(model_dir, profile_steps))

        # ---- Training: from the first batch to the last checkpoint ---------------------------------------------------
        result = loop.run(
            program,
            state,
            frozen,
            feed,
            periods=periods,
            checkpointer=checkpointer,
            evaluate=evaluate if evaluate.names else None,
            improvement=improvement,
            reports=loop.Reports(writer, progress, status, profile),
            stop=stop,
            lock=lock,
            stop_after_skipped=stop_after_skipped,
            started=started,
        )
        if result.stopped_by:
            resume = run_directory.how_to_resume(model_dir, checkpointer.latest(), result.step)
            logging.warning("stopped by %s, %s", result.stopped_by, resume)
        else:
            end = run_directory.describe_end(model_dir, result.step, result.finished, checkpointer.best())
            logging.info("%s", end)
        best_step = checkpointer.best()

    # ---- Result -------------------------------------------------------------------------------------------------
    params = optimizers.merge(result.state.params, frozen.params)
    if on_finish is not None and not result.stopped_by:
        distributed.heartbeat("the final report")
        held_out = next((each.data for each in (evaluations or {}).values() if each.data is not None), data)
        on_finish(params=params, objective=objective, partitioner=partitioner, data=held_out, model_dir=model_dir)
    return TrainResult(model_dir, result.step, params, result.stopped_by, result.evaluation, best_step)


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


def _restore(
    checkpointer: Checkpoints,
    last: int,
    shapes: tuple[step.TrainState, step.Frozen],
    optimizer: optimizers.Optimizer,
    partitioner: partitioning.Partitioner,
) -> tuple[step.TrainState, step.Frozen]:
    """Restores `(state, frozen)`; a checkpoint holds trainable and frozen parameters together."""
    state_shapes, frozen_shapes = shapes
    merged = state_shapes.replace(params=optimizers.merge(state_shapes.params, frozen_shapes.params))
    restored = checkpointer.restore(last, merged, partitioner)
    trainable, frozen = optimizers.split(restored.params, optimizer.groups)
    logging.info("restored step %d", last)
    return restored.replace(params=trainable), step.Frozen(frozen)


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
