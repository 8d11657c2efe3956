"""Pretrains, fine-tunes or distills a model. The function `train` reads in the order in which data flows."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
from absl import logging

from t5x_like import metrics, optimizers, paths
from t5x_like.adapters import quantization
from t5x_like.data import prompts
from t5x_like.data import provenance as data_provenance
from t5x_like.runtime import console_log, distributed, provenance
from t5x_like.runtime.background import Background
from t5x_like.runtime.preemption import StopRequest
from t5x_like.stored import frozen_base, run_tokenizer, run_vocabulary, warm_start, weight_source
from t5x_like.training import checks, debugging, export_note, loop, resuming, run_feed
from t5x_like.training.improvement import restore_improvement
from t5x_like.training.program import make_program
from t5x_like.training.recipe import Recipe
from t5x_like.training.repeated_step import RepeatedStep
from t5x_like.training.runs import recipe_vocabulary, run_directory, run_lock, run_log, run_teachers, start_record
from t5x_like.training.state import to_evaluate


@dataclasses.dataclass
class TrainResult:
    """The result of `train`.

    Attributes:
      model_dir: The run directory.
      step: The last step.
      params: The parameters after it, or their averages with `Update.ema_decay`: `{"model": …, "objective": …}`.
      stopped_by: The signal that ended the run early, or None.
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
    on_log: loop.StepCallback | None = None,
    on_eval: loop.StepCallback | None = None,
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
      UserError: Parts of the recipe are invalid or do not fit together. No step has been computed.
      TrainingFailed: The loss stayed non-finite.
      ProcessLost: Another process of the run has ended.
      RunInUse: Another run writes to the run directory.
      SilentDataCorruption: A repeated step has given other bits.
      RunFailed: The run directory can no longer be written to.
      Stopped: A signal arrived before the end of the first step.
    """
    # ---- Program: everything that is known without data or arrays ----------------------------------------------------
    started = time.monotonic()
    given_recipe, recipe = recipe, recipe_vocabulary.with_copy(recipe)
    objective, data, periods, storage = recipe.objective, recipe.data, recipe.periods, recipe.storage
    for name, teacher in recipe.teachers.items():
        logging.info("teacher %s: %s", name, teacher)
    checks.check_settings(recipe)
    initial = recipe.initial if recipe.initial.path else None
    program = make_program(recipe)
    program.trace()
    config, shapes, partitioner = program.config, program.shapes, program.partitioner
    all_shapes = optimizers.merge(shapes[0].params, shapes[1].params)
    num_trained = optimizers.count_trained(all_shapes, recipe.optimizer.groups, max(periods.total - 1, 0))
    command = provenance.command_line(run_config.words if run_config else None)
    is_main = jax.process_index() == 0

    with contextlib.ExitStack() as stack:
        log = stack.enter_context(run_log.RunLog(enabled=is_main))
        # ---- Checks: of the data and the initial weights, while the step is compiled ---------------------------------
        compilation = stack.enter_context(Background(program.compile))
        checked = checks.check_recipe(recipe, program)
        vocabulary, evaluate = checked.vocabulary, checked.evaluations
        if is_main:
            export_note.log(config, recipe.predicting)

        # ---- Run directory: exclusive, and its stored configuration agrees -------------------------------------------
        model_dir = run_directory.resolve(storage.model_dir)
        logging.info("run directory %s", model_dir)
        run_directory.warn_of_other_files(model_dir)
        logging.info("%s", partitioner)
        stop = stack.enter_context(StopRequest())
        # These contexts exit in reverse order. Errors are explained inside of the status, so that status.json and the
        # supervisor's log have the same message as the command.
        with paths.explain_path_errors("MODEL_DIR", model_dir), run_directory.explain_storage_errors(model_dir):
            lock = stack.enter_context(run_lock.RunLock(model_dir, enabled=is_main))
        stack.enter_context(log.open(model_dir, command))
        goodput = stack.enter_context(metrics.GoodputMonitor(model_dir, enabled=is_main, started=started))
        status = stack.enter_context(run_directory.Status(model_dir, enabled=is_main, goodput=goodput))
        stack.enter_context(distributed.explain_lost_process())
        stack.enter_context(distributed.reports_hangs(model_dir, status.report_hang))
        stack.enter_context(run_directory.explain_storage_errors(model_dir))
        stack.enter_context(debugging.explain_out_of_memory(program, recipe.update.microbatches))
        checks.check_stored(model_dir, recipe, vocabulary, run_config)
        distributed.heartbeat("the other processes, to compare configurations and directories")
        distributed.check_agreement(model_dir, run_config.text if run_config else "")

        # ---- Data: batches are prefetched while the model is initialized ---------------------------------------------
        feed = stack.enter_context(run_directory.closing(run_feed.open_feed(recipe, config.vocab_size, partitioner)))
        described = {
            split: data_provenance.describe(source) for split, source in ({"train": data} | evaluate.sources).items()
        }
        distributed.heartbeat("the other processes, to compare their data")
        data_provenance.check_agreement(described, vocabulary.digest)

        # ---- State: restored, or initialized directly into its shards ------------------------------------------------
        checkpointer = stack.enter_context(run_directory.closing(resuming.open_checkpoints(storage, model_dir)))
        checks.check_best_metric(recipe, program, evaluate, checkpointer)
        base = frozen_base.of_run(model_dir) if run_directory.may_resume(model_dir) else None
        checkpointer.prepare(resuming.saved(*shapes, base), partitioner)
        with goodput.phase("restore"):
            start = run_directory.resume_step(checkpointer, model_dir, run_config)
        status.step = start
        distributed.heartbeat(f"the state of step {start}")
        if start:
            with goodput.phase("restore"):
                restored = resuming.restore(checkpointer, start, shapes, recipe.optimizer, partitioner, base)
            state, frozen, base = restored.state, restored.frozen, restored.base
            about = checkpointer.about(start)
            run_directory.warn_if_environment_changed(about, partitioner)
        else:
            state, frozen = program.init(jax.random.key(recipe.seed))
            base = None
            if initial is not None:
                path = distributed.compute_in_main(lambda: weight_source.resolve(initial.path))
                source = dataclasses.replace(initial, path=path)
                warm = warm_start.restore(source, state, frozen, config, partitioner, objective)
                state, frozen = warm.state, warm.frozen
                base = frozen_base.of_new_run(path, warm.exact, frozen.params, averaged=source.averaged)
            state = program.start_adapters(state, frozen, data)
        base = None if storage.store_base else base
        frozen_base.report_rounded(base, frozen.params)
        checkpointer.prepare(resuming.saved(*shapes, base), partitioner)
        improvement = restore_improvement(checkpointer.best_metric, periods.patience, model_dir, start, evaluate.names)
        early = improvement.reason() if start and improvement.is_exhausted else None
        if start >= periods.total or early:
            best = checkpointer.best()
            logging.info("%s", run_directory.describe_end(model_dir, start, early, best))
            logging.info("%s", run_directory.how_to_train_longer(model_dir, start, is_early=early is not None))
            params = to_evaluate(state, frozen)
            return TrainResult(model_dir, start, params, None, {}, best and best.step, program.flops, num_trained)
        read = {name: each.on(partitioner).read() for name, each in recipe.teachers.items() if each.runs}
        frozen = frozen.replace(teachers=read)
        if start:
            with goodput.phase("restore"):
                run_feed.restore_position(feed, checkpointer.restore_feed(start), run_config)

        # ---- Reports: metrics, progress, description -----------------------------------------------------------------
        info = run_directory.model_info(all_shapes, partitioner)
        logging.info("%s", info.splitlines()[-1])
        if num_trained < (total := quantization.count(all_shapes)):
            logging.info("%s of them are trained, %.3g %%", f"{num_trained:,}", 100 * num_trained / total)
        rows = metrics.MetricsWriter(model_dir, enabled=is_main, logger_names=storage.loggers)
        writer = stack.enter_context(run_directory.closing(rows))
        checkpointer.begin()  # first, because no later start may resume from a step whose metrics are removed
        writer.rewind(start)
        if start and is_main:
            writer.warn_if_changed(about.get(metrics.rows.DIGEST))
        if is_main:
            run_directory.write_description(model_dir, info, run_config, given_recipe)
            start_record.append(model_dir, step=start, command=command, partitioner=partitioner, data=described)
            run_teachers.store(model_dir, recipe.teachers)
            if not start:
                frozen_base.store(model_dir, base)
                run_tokenizer.store(model_dir, vocabulary, initial.path if initial else None)
                kind = data.vocabulary_kind(objective.features)
                eos = prompts.add_eos(data, objective.features)
                run_vocabulary.store(model_dir, vocabulary.digest, kind, data.name, eos)
        progress = stack.enter_context(metrics.Progress(periods.total, start, enabled=is_main))
        profile_steps = run_config.profile_steps if run_config and is_main else None
        profile = stack.enter_context(debugging.Profile(model_dir, profile_steps))

        # ---- Training: from the first batch to the last checkpoint ---------------------------------------------------
        distributed.heartbeat("the compilation of the training step")
        with goodput.phase("compile"):
            compilation.wait()
        if periods.repeat is not None:
            repeated = RepeatedStep(program.train_step, partitioner.mesh, program.shardings[0], periods.repeat)
            program = dataclasses.replace(program, train_step=repeated)
        callbacks = (on_log, on_eval, on_save) if is_main else ()
        result = loop.run(
            program,
            state,
            frozen,
            feed,
            periods=periods,
            local=storage.local,
            base=base,
            checkpointer=checkpointer,
            evaluate=evaluate if evaluate.names else None,
            improvement=improvement,
            reports=loop.Reports(writer, progress, status, profile, goodput, *callbacks),
            stop=stop,
            lock=lock,
            started=started,
        )
        if result.stopped_by:
            resume = run_directory.how_to_resume(model_dir, checkpointer.latest(), result.step)
            logging.warning("stopped by %s, %s", result.stopped_by, resume)
        else:
            logging.info("%s", run_directory.describe_end(model_dir, result.step, result.finished, checkpointer.best()))
        best = checkpointer.best()

    # ---- Result ------------------------------------------------------------------------------------------------------
    params = to_evaluate(result.state, frozen)
    if on_finish is not None and not result.stopped_by:
        distributed.heartbeat("the final report")
        held_out = next((each.data for each in (recipe.evaluations or {}).values() if each.data is not None), data)
        on_finish(
            params=params, objective=recipe.predicting, partitioner=partitioner, data=held_out, model_dir=model_dir
        )
    last, best_step = result.evaluation, best and best.step
    return TrainResult(model_dir, result.step, params, result.stopped_by, last, best_step, program.flops, num_trained)
